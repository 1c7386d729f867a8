"""The node as a whole, by its ports alone: hdl/node.py.

Rings of nodes are in tests/hdl/ring/test_collective.py and tests/host/.
"""

import dataclasses

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.control.protocol import Opcode, Operation, Space, Status, header_layout
from hdl.control.registers import IDENTIFIER, register
from hdl.node import Node
from hdl.stream import word_layout
from host.device import Command
from sim import bench_ring_speed
from sim.golden import ring as golden
from sim.payload import to_int
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit, pack, unpack

CONFIG = NodeConfig(gradient_words=1024, weight_words=1024, state_words=1024)
LENGTH = 700


def request(opcode, count, *words):
    header = to_int(header_layout(), {"opcode": opcode, "tag": 9, "count": count})
    return [header, *(int(word) for word in words)]


def exchange(node, *requests, pattern="none", seed=0, cycles=12_000):
    """The responses to some requests, sent one behind the other."""
    words = [word for packet in requests for word in packet]
    last = [n == len(packet) - 1 for packet in requests for n in range(len(packet))]
    trace = node.lockstep(
        sources={
            "host_i": Feed(
                pack(word_layout(), {"data": np.array(words, np.uint32), "last": np.array(last)}),
                willing=stall_array(pattern, cycles, seed=seed),
            )
        },
        sinks={"host_o": stall_array(pattern, cycles, seed=seed + 1)},
    )
    taken = np.flatnonzero(trace["host_o__valid"].astype(bool) & trace["host_o__ready"].astype(bool))
    beats = unpack(word_layout(), trace["host_o__payload"][taken])
    ends = np.flatnonzero(beats["last"]) + 1
    return [response.tolist() for response in np.split(beats["data"], ends)[:-1]]


def update(gradients, weights):
    """Requests of a fused update on a ring of one, by SGD with a learning rate of 1/2, and the reading of weights."""
    command = Command(operation=Operation.FUSED_UPDATE, length=LENGTH, tag=5)
    half = np.float32(0.5).view(np.uint32)
    return [
        request(Opcode.WRITE_REGISTER, 1, register("LEARNING_RATE").address, half),
        request(Opcode.WRITE_MEMORY, LENGTH, Space.GRADIENT << 28, *gradients.view(np.uint32)),
        request(Opcode.WRITE_MEMORY, LENGTH, Space.WEIGHT << 28, *weights.view(np.uint32)),
        request(Opcode.PUSH_COMMAND, 8, *command.words()),
        request(Opcode.POP_EVENT, 4, 100_000),
        request(Opcode.READ_MEMORY, LENGTH, Space.WEIGHT << 28),
    ]


@pytest.fixture(scope="module")
def node():
    return Unit(Node(CONFIG))


@pytest.mark.parametrize("pattern", ["none", "geometric", "freeze", "alternating"])
def test_update_alone(node, pattern):
    """A ring of one: a burst over the local gradient, whatever the host's stalls."""
    generator = np.random.default_rng(3)
    gradients = generator.standard_normal(LENGTH).astype(np.float32)
    weights = generator.standard_normal(LENGTH).astype(np.float32)
    node.reset()
    *others, found = exchange(node, *update(gradients, weights), pattern=pattern, cycles=60_000)
    assert [response[1] for response in [*others, found]] == [Status.OK] * 6
    event = others[-1][2:]
    assert event[0] == 5  # its tag, and no status or flag
    expected = weights - np.float32(0.5) * gradients
    assert (np.array(found[2:], np.uint32) == golden.bits(expected)).all()


@pytest.mark.parametrize("words", [1, 2, 3, 200])
def test_reset_in_the_middle_of_a_packet(node, words):
    """After a reset the node takes the next word for the first of a packet, and its registers are as at the start."""
    gradients = np.ones(LENGTH, np.float32)
    first = update(gradients, gradients)
    node.reset()
    assert len(exchange(node, first[0], first[1][:words], cycles=1000)) >= 1
    node.reset()
    identifier, rate, *others, found = exchange(
        node,
        request(Opcode.READ_REGISTER, 1, register("ID").address),
        request(Opcode.READ_REGISTER, 1, register("LEARNING_RATE").address),
        *update(gradients, gradients),
    )
    assert identifier[1:] == [Status.OK, IDENTIFIER]
    assert rate[1:] == [Status.OK, 0]
    assert [response[1] for response in [*others, found]] == [Status.OK] * 6
    assert set(found[2:]) == {int(np.float32(0.5).view(np.uint32))}


def test_reset_in_the_middle_of_a_command(node):
    gradients = np.ones(LENGTH, np.float32)
    requests = update(gradients, gradients)
    node.reset()
    exchange(node, *requests[:4], cycles=2 * LENGTH + 200)  # the burst has begun
    node.reset()
    *others, found = exchange(node, *requests)
    assert [response[1] for response in [*others, found]] == [Status.OK] * 6
    assert set(found[2:]) == {int(np.float32(0.5).view(np.uint32))}


def test_a_ring_under_cocotb_answers_as_the_verilated_ring():
    """The same words to four nodes in both simulations: every response is the same, cycles of commands among them.

    Four nodes in one model take long to compile, so they are of the kind that has SGD alone.
    """
    config = dataclasses.replace(bench_ring_speed.CONFIG, state_planes=0)
    speed = bench_ring_speed.measure(config, threads=(1,), repetitions=1)
    assert speed.cycles > bench_ring_speed.LENGTH
