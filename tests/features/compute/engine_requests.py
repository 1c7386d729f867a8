# amaranth: UnusedElaboratable=no
"""Node for tests of LAYERS commands, the golden model of its compute engine, and host requests."""

import functools

import numpy as np

from hdl.config import Memories, NodeConfig, SingleRing
from hdl.control.protocol import Opcode, Operation, Status
from hdl.control.registers import register
from hdl.engines import engines
from hdl.features.compute.engine import BLOCKS
from hdl.features.compute.feature import Compute
from hdl.features.compute.layer_list import Place
from hdl.features.compute_stub.feature import ComputeStub
from hdl.node import Node
from sim.golden.features.compute.compute import Engine
from sim.verilated.vectors import Unit
from tests.features.compute.lists import WORDS
from tests.hdl import host_requests
from tests.hdl.host_requests import event, push, request

#: A node with a compute engine, a compute stub, and the memory sizes that random lists assume.
CONFIG = NodeConfig(
    lanes=4, topology=SingleRing(max_nodes=1),
    memories=Memories(gradient=WORDS[0], weight=WORDS[1], state=32, planes=0), masking=False, sparsify=False,
    compute=Compute(rows=1, activations=WORDS[2], codebook=16, scale_mask=True, sequences=True, buffer_tags=True),
    stub=ComputeStub())
PLACES = (Place.GRADIENTS, Place.WEIGHTS, Place.ACTIVATIONS)
SPACES = dict(zip(PLACES, (CONFIG.memory_map[name].number for name in ("gradients", "weights", "activations")),
                  strict=True))
COUNTERS = ("COMMAND_CYCLES", "GEMM_CYCLES", "VECTOR_CYCLES")
POP = request(Opcode.POP_EVENT, 4, 100_000)
LIST = 512

exchange = functools.partial(host_requests.exchange, cycles=20_000)
golden = Engine(rows=CONFIG.compute.rows, lanes=CONFIG.lanes, blocks=BLOCKS, scale_mask=True, centroids=16,
                sequences=True)


@functools.cache
def node_unit():
    described = [engine for engine in engines(CONFIG) if engine.name in ("compute_stub", "compute")]
    return Unit(Node(CONFIG, described), name="ComputeNode")


def write(memory, address, words):
    return request(Opcode.WRITE_MEMORY, len(words), SPACES[memory] << 28 | address, *words)


def read(memory, address=0, count=None):
    return request(Opcode.READ_MEMORY, CONFIG.memory_map.words[SPACES[memory]] if count is None else count,
                   SPACES[memory] << 28 | address)


READ_ALL = [read(memory) for memory in PLACES]


def fill(memories):
    return [write(space, 0, memory) for space, memory in memories.items()]


def compare(responses, memories, note=""):
    for response, (space, memory) in zip(responses, memories.items(), strict=True):
        assert response[1] == Status.OK
        np.testing.assert_array_equal(response[2:], memory, f"{space.name}, {note}")


def run_list(unit, memories, address, *, length=6, base=0, tag=0, note="", **options):
    """Fill memories, run a list and compare it with the golden engine; return the event and counter values."""
    unit.reset()
    responses = exchange(unit, *fill(memories), push(**layers(address, length=length, base=base, tag=tag)), POP, *(
        request(Opcode.READ_REGISTER, 1, register(name).address) for name in COUNTERS), *READ_ALL, **options)
    outcome, ended = golden.run(memories, base=address, length=length, offset=base), event(responses[4])
    assert (ended.tag, ended.status, ended.detail) == (tag, outcome.status, outcome.detail), note
    compare(responses[8:], memories, note)
    return ended, [response[2] for response in responses[5:8]]


def layers(address, *, length=6, base=0, **fields):
    """Return the fields of a LAYERS command, with arbitrary values in fields that it ignores."""
    return {"operation": Operation.LAYERS, "weight_base": address, "state_base": base, "length": length,
            "gradient_base": 0xABCD_EF01, "rank": 9, "size": 3, "port": 7, "root": 8, "block_offset": 5, "stride": 0,
            "duration": 0x7777_7777, **fields}
