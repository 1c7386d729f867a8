# amaranth: UnusedElaboratable=no
"""Transports for the contract tests, and fixtures shared by the host's tests.

To run the contract tests on another transport, add a factory to :data:`RINGS`: a context manager that yields two
connected devices of the same configuration on one ring.
"""

import contextlib
import functools
import importlib
import itertools
import json
import re
import sys

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Memories, NodeConfig
from hdl.control.command_queue import CommandQueue
from hdl.control.host_port import HostPort
from hdl.control.protocol import EventStatus
from hdl.control.register_file import RegisterFile
from hdl.engines import operations
from hdl.host_access import HostAccess
from hdl.memory import LanedMemory
from hdl.registry import FEATURES
from hdl.ring.link import LinkSignature
from hdl.streams.stream import connect_stream, word_layout
from host import cli
from host.driver import memory
from host.driver.device import Device
from host.models.digits import Dataset, digits
from host.models.text import Text, topics
from host.models.transformer import TransformerConfig
from host.run import preparation
from host.transports import verilated as verilated_transport
from host.transports.pysim import PysimRing
from host.transports.verilated import OpenRing
from sim.verilated.build import build_ring
from tests.host.board import devices_of, open_link
from tests.host.golden import SMALL
from tests.host.rings import CONFIGS, JOBS, MIXED, library

#: Feature modules that create their own nodes.
OWN_NODES = [f"host.features.{name}.{module}" for name, module in (("quantization", "command"), ("quorum", "run"))
             if name in FEATURES]

TINY = NodeConfig(lanes=2, memories=Memories(gradient=96, weight=64, state=32, planes=2))


class TinyNode(wiring.Component):
    """Node without a collective engine, on which every command that can start succeeds at once.

    The event's detail is the command's length. Nothing is sent on the ring.
    """

    def __init__(self, config):
        self._config = config
        super().__init__({
            "host_i": In(stream.Signature(word_layout())),
            "host_o": Out(stream.Signature(word_layout())),
            "ring_i": In(LinkSignature()),
            "ring_o": Out(LinkSignature()),
        })

    def elaborate(self, platform):
        m = Module()
        config = self._config
        spaces = [config.memories.gradient, config.memories.weight, *[config.memories.state] * config.memories.planes]
        rows = tuple(words // config.lanes for words in spaces)
        m.submodules.host_port = host_port = HostPort(config=config)
        m.submodules.registers = registers = RegisterFile(config=config)
        m.submodules.queue = queue = CommandQueue(config=config, operations=operations(config))
        m.submodules.access = access = HostAccess(rows=rows, lanes=config.lanes)
        for space, count in enumerate(rows):
            m.submodules[f"memory_{space}"] = memory = LanedMemory(
                rows=count, lanes=config.lanes, readers=1, writers=1)
            wiring.connect(m, access=getattr(access, f"read_{space}"), memory=memory.read[0])
            wiring.connect(m, access=getattr(access, f"write_{space}"), memory=memory.write[0])
        connect_stream(m, self.host_i, host_port.i)
        connect_stream(m, host_port.o, self.host_o)
        wiring.connect(m, host_port=host_port.bus, registers=registers.bus)
        wiring.connect(m, host_port=host_port.memory_read, access=access.read)
        wiring.connect(m, host_port=host_port.memory_write, access=access.write)
        connect_stream(m, host_port.commands, queue.commands)
        connect_stream(m, queue.events, host_port.events)
        m.d.comb += [
            host_port.commands_full.eq(queue.full),
            queue.rule.eq(registers.optimizer[:2]),
            queue.packed_state.eq(registers.optimizer[3]),
            queue.timeout.eq(registers.timeout),
            queue.link_reset.eq(registers.link_reset),
            queue.weight_version.eq(registers.weight_version),
            queue.set_flags.eq(registers.set_flags),
            registers.flags.eq(queue.flags),
            registers.last_error.eq(queue.last_error),
            registers.queue_status.eq(queue.queue_status),
            queue.start[0].ready.eq(~queue.completions[0].valid),
            registers.count.encodes.eq(queue.start[0].valid & queue.start[0].ready),
        ]
        event = queue.completions[0].payload
        with m.If(queue.completions[0].ready):
            m.d.sync += queue.completions[0].valid.eq(0)
        with m.If(queue.start[0].valid & queue.start[0].ready):
            m.d.sync += [
                queue.completions[0].valid.eq(1),
                event.tag.eq(queue.start[0].payload.tag),
                event.status.eq(EventStatus.OK),
                event.detail.eq(queue.start[0].payload.length),
            ]
        return m


@functools.cache
def tiny_ring():
    return PysimRing(lambda: TinyNode(TINY), nodes=2, latency=3)


@contextlib.contextmanager
def pysim():
    """Nodes that consist only of the control plane, in Amaranth's simulator, just after power-up."""
    ring = tiny_ring()
    ring.reset()
    yield [Device(transport, TINY, name=f"node {n}") for n, transport in enumerate(ring.transports)]


@contextlib.contextmanager
def verilated():
    """Complete nodes, simulated with Verilator."""
    with OpenRing(library(NodeConfig()), nodes=2, threads=1) as ring:
        yield [Device(transport, NodeConfig(), name=f"node {n}") for n, transport in enumerate(ring.transports)]


@contextlib.contextmanager
def board():
    """Simulated board, connected by a pseudo-terminal."""
    with open_link() as (_, link):
        yield devices_of(link)


RINGS = [pysim, verilated, board]


@pytest.fixture(params=RINGS, ids=lambda factory: factory.__name__)
def devices(request):
    """Two connected devices on one ring, once for each transport."""
    with request.param() as result:
        for device in result:
            device.connect()
        yield result
        for device in result:
            device.close()


@pytest.fixture(autouse=True, scope="session")
def known_rings():
    """Reject simulated rings of nodes with a configuration that tests/host/rings.py does not list."""
    def build(node, **options):
        known = [*CONFIGS.values(), JOBS, *itertools.chain(*MIXED.values())]
        assert node.config in known, f"Nodes must be those of tests/host/rings.py, not {node.config}"
        return build_ring(node, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verilated_transport, "build_ring", build)
        yield


@pytest.fixture(autouse=True)
def planes_as_they_are(monkeypatch):
    """Keep the number of state planes unless a test changes it, so that all optimizers use one compiled library."""
    def fitted(node, allocations, *, nodes, planes=None):
        planes = node.memories.planes if planes is None else planes
        return memory.fitted(node, allocations, nodes=nodes, planes=planes)

    monkeypatch.setattr(preparation, "fitted", fitted)


@pytest.fixture
def nodes_of(monkeypatch):
    """Make the program use a node configuration from tests/host/rings.py that other tests also simulate."""
    def use(name):
        for module in (preparation, *map(importlib.import_module, OWN_NODES)):
            monkeypatch.setattr(module, "NodeConfig", lambda **options: CONFIGS[name])

    return use


@pytest.fixture
def device(devices):
    """The first of the two connected devices."""
    return devices[0]


@pytest.fixture(scope="session")
def data():
    """The complete digits dataset."""
    return digits()


@pytest.fixture(scope="session")
def few(data):
    """A small fraction of the digits."""
    return Dataset(data.train_x[:50], data.train_y[:50], data.test_x[:50], data.test_y[:50], data.classes)


@pytest.fixture(scope="session")
def third(data):
    """Use a third of the training images (479), which gives five steps per epoch."""
    return Dataset(data.train_x[::3], data.train_y[::3], data.test_x, data.test_y, data.classes)


@pytest.fixture(scope="session")
def text():
    """Use only as much of the text as suits the default model."""
    source = topics(context=TransformerConfig.context)
    return Text(source.train[:90], source.test[:12])


@pytest.fixture(scope="session")
def lines():
    """Only as much of the text, in pieces of 2 to 9 characters, as suits the small model."""
    source = topics(context=SMALL.context)
    return Text(source.train[:200], source.test[:40])


@pytest.fixture
def program(monkeypatch, capsys):
    """Run the program, and return the exit code, standard output and standard error."""
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gradring", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return caught.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def run(program):
    """Run the program; return exit code, standard output without the first stage line, and standard error."""
    def call(*arguments):
        code, out, err = program(*arguments)
        return code, re.sub(r"^data ….*\n", "", out), err

    return call


@pytest.fixture
def succeed(run):
    """Run the program, check for exit code 0 and no error output, and return standard output."""
    def call(*arguments):
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        return out

    return call


@pytest.fixture
def train(succeed, tmp_path):
    """Run a training that must succeed, and return standard output and the report."""
    def call(*options, folder=tmp_path):
        out = succeed("train", *options, "--output", folder)
        return out, json.loads((folder / "report.json").read_text())

    return call
