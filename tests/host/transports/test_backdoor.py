"""Memory access that bypasses the host port gives the same bits, errors and computed times as the port."""

import contextlib
import dataclasses

import numpy as np
import pytest

from hdl.control.protocol import Space
from hdl.control.registers import COUNTERS
from host.driver.device import PACKET_WORDS, Device
from host.driver.errors import BadAddressError, ReadOnlyError
from host.driver.ring import Ring
from host.training.optimizers import SGD, OptimizerName, create
from host.training.record import TrainingConfig
from host.training.trainer import train
from host.training.workloads import Classifier
from host.transports.backdoor import BackdoorTransport, PortTime
from host.transports.session import Elapsed, TransportName, open_session
from tests.host import rings

DEFAULT, MASTERS, CODEBOOK, REDUCED = (rings.CONFIGS[name] for name in ("default", "mx9", "table", "int16"))


@contextlib.contextmanager
def open_nodes(config, nodes, *, host_port):
    """Open a ring; yield it with its simulation and the clock that measures the time of the ports."""
    with rings.open_nodes(nodes, config=config) as (ring, simulation):
        time = PortTime(lambda: simulation.cycle)
        if not host_port:
            devices = [Device(BackdoorTransport(device.transport, simulation, node, config, time), config,
                              name=device.name) for node, device in enumerate(ring.devices)]
            ring = Ring(devices, timeout=rings.TIMEOUT)
            ring.connect()
        yield ring, simulation, time


@pytest.mark.parametrize("config", [MASTERS, CODEBOOK, REDUCED],
                         ids=["masters", "codebook", "int16"])
def test_every_space(config):
    """Words written through the host port are read through the backdoor and vice versa, in the computed cycles."""
    generator = np.random.default_rng(3)
    with rings.open_nodes(1, config=config) as (ring, simulation):
        time = PortTime(lambda: simulation.cycle)
        port = ring.devices[0]
        direct = Device(BackdoorTransport(port.transport, simulation, 0, config, time), config)
        # The trace memory is read-only, and is read through the port even by the backdoor transport.
        spaces = [space for space in config.memory_map if space.name != "trace"]
        assert simulation.spaces == (len(spaces),) * simulation.nodes
        for space, capacity in ((space.number, space.words) for space in spaces):
            content = generator.integers(0, 1 << 15, capacity, dtype=np.uint32)
            direct.write_memory(space, 0, content)
            for _ in range(8):
                count = int(generator.integers(1, min(capacity, 40)))
                address = int(generator.integers(0, capacity - count + 1))
                words = generator.integers(0, 1 << 32, count, dtype=np.uint32)
                expected = words if config.has_ring else words.astype(np.int16).astype(np.int32).view(np.uint32)
                cycles = []
                for writer, reader in ((port, direct), (direct, port)):
                    begun = time.now
                    writer.write_memory(space, address, words)
                    written = time.now
                    assert reader.read_memory(space, address, count).tolist() == expected.tolist()
                    cycles += [written - begun, time.now - written]
                assert cycles[:2] == cycles[2:]
                content[address:address + count] = expected
            assert port.read_memory(space, 0, capacity).tolist() == content.tolist()


def test_what_a_node_refuses():
    """The node itself rejects invalid accesses, and nothing is written."""
    with open_nodes(MASTERS, 1, host_port=False) as (ring, simulation, time):
        device, before = ring.devices[0], time.cycles
        spaces = len(MASTERS.memory_map.words)
        for space, address, count in ((Space.GRADIENT, 16384 - 4, 5), (Space.WEIGHT, 16384, 1), (spaces, 0, 1),
                                      (15, 0, 1)):
            with pytest.raises(BadAddressError):
                device.read_memory(space, address, count)
            with pytest.raises(BadAddressError):
                device.write_memory(space, address, np.ones(count, np.uint32))
        trace = MASTERS.memory_map["trace"].number
        with pytest.raises(ReadOnlyError):
            device.write_memory(trace, 0, np.ones(2, np.uint32))
        assert time.cycles == before
        assert not simulation.memory(0, Space.GRADIENT).any()
        with pytest.raises(ValueError, match=rf"^Memory space must be one of the {trace} that the library "):
            simulation.memory(0, trace)


def test_answers_in_order():
    """As long as the node must still answer an earlier request, memory is accessed through the host port."""
    with open_nodes(MASTERS, 1, host_port=False) as (ring, _, time):
        device, before = ring.devices[0], time.words
        pending = [device.submit_ping(np.array([1, 2], np.uint32)),
                   device.submit_write_memory(0, 0, np.array([7, 8, 9], np.uint32)),
                   device.submit_read_memory(0, 1, 2)]
        assert [request.result() for request in pending][2].tolist() == [8, 9]
        assert time.words == before
        first, second = device.submit_read_memory(0, 0, 2), device.submit_write_memory(0, 0, np.zeros(1, np.uint32))
        register = device.submit_read_register("TIMEOUT")
        assert register.result() == rings.TIMEOUT
        assert first.result().tolist() == [7, 8]
        assert second.result() is None
        assert time.words == before + (2 + 4) + (3 + 3)


def test_long_transfers():
    """Several packets in a row take the same time as through the port."""
    assert MASTERS.memories.gradient == PACKET_WORDS
    figures = []
    for host_port in (True, False):
        with open_nodes(MASTERS, 2, host_port=host_port) as (ring, _, time):
            begun = time.now
            pending = [device.submit_write_memory(space, address, np.arange(16_000, dtype=np.uint32))
                       for device in ring.devices for space, address in ((0, 1), (1, 5))]
            pending += [device.submit_read_memory(0, address, 100)
                        for device in ring.devices for address in (1, 2, 3)]
            results = [item.result() for item in pending]
            figures.append((time.now - begun, [item.tolist() for item in results if item is not None]))
    assert figures[0] == figures[1]


@pytest.mark.parametrize("config", [MASTERS, REDUCED], ids=["full", "int16"])
def test_counters(config):
    """The counters, and the numbers of cycles, are the same as through the host port, after any pause and after
    transfers."""
    generator = np.random.default_rng(4)
    with rings.open_nodes(1, config=config) as (ring, simulation):
        port = ring.devices[0]
        port.write_memory(Space.WEIGHT, 0, np.zeros(32, np.uint32))
        for pause in range(16):
            simulation.run(64)
            first = int(generator.integers(1, len(COUNTERS)))
            count = int(generator.integers(1, len(COUNTERS) - first + 1))
            results = []
            for way in ("port", "direct"):
                time = PortTime(lambda: simulation.cycle)
                direct = Device(BackdoorTransport(port.transport, simulation, 0, config, time), config)
                device = direct if way == "direct" else port
                simulation.run((pause - simulation.cycle) % 16)
                begun = time.now
                pending = [device.submit_write_memory(Space.WEIGHT, 0, np.zeros(pause + 1, np.uint32)),
                           device.submit_read_bits(COUNTERS[first].name, COUNTERS[first + count - 1].name)]
                values = [request.result() for request in pending][1]
                results.append((values, time.now - begun))
            assert time.words == pause + 1 + 2 + 3 + 2 + 2 + count
            assert results[0] == results[1]
        # While counters are being cleared, they are read through the port.
        direct.write_register("CONTROL", 2)
        assert simulation.counters(0) is None
        words = time.words
        cleared = direct.counters()
        assert time.words == words
        assert cleared.pop("CYCLES") < 1000
        assert not any(cleared.values())


RUN = TrainingConfig(max_steps=6, interval=5, batch=100, hidden=())
RUNS = {
    "adam, density": (DEFAULT, dataclasses.replace(RUN, optimizer=create(OptimizerName.ADAM), density=0.2), 3),
    "momentum, bfloat16, mx9": (MASTERS, dataclasses.replace(RUN, packed_state=True), 3),
    "codebook, mxfp8 gradients": (CODEBOOK,
                                dataclasses.replace(RUN, optimizer=SGD(learning_rate=0.5), refresh=3), 4),
    "int16": (REDUCED, dataclasses.replace(RUN, optimizer=SGD(learning_rate=0.5)), 1),
}


@pytest.mark.parametrize("name", RUNS)
def test_training(name, third):
    """Training through the host port and training through the backdoor give the same weights, command cycles and
    host-port cycles."""
    config, run, nodes = RUNS[name]
    outcomes = []
    for host_port in (True, False):
        with open_nodes(config, nodes, host_port=host_port) as (ring, simulation, time):
            task, begun = Classifier(third, ()), time.now
            training = train(ring, task, run)
            assert training.bit_exact is True
            content = [simulation.memory(node, space).tobytes() for node in range(nodes)
                       for space in range(simulation.spaces[0])]
            outcomes.append((dataclasses.asdict(training), task.parameters.tobytes(), content,
                             time.now - begun))
            assert (time.cycles > 0) != host_port
    assert outcomes[0] == outcomes[1]


class TestSession:
    def test_elapsed(self):
        """Simulated cycles plus the computed cycles of the port equal the cycles with a simulated host port."""
        results = []
        for host_port in (True, False):
            with open_session(MASTERS, nodes=2, host_port=host_port) as session:
                session.ring.collectives.distribute(np.ones(100, np.float32))
                results.append((session.elapsed, session.ring.memory.read_weights(100).tolist()))
        (through, weights), (direct, same) = results
        assert weights == same
        assert (through.port_cycles, through.port_words) == (0, 0)
        assert direct.simulated < through.simulated == through.cycles == direct.cycles
        assert direct.port_words > 0
        assert direct.since(direct) == Elapsed()
        assert direct.since(through).plus(through) == direct

    @pytest.mark.parametrize("transport", [TransportName.PYSIM, TransportName.BOARD])
    @pytest.mark.parametrize(("options", "what"), [({"host_port": False}, "to bypass the host port"),
                                                   ({"far_rate": 1 / 4}, "for a far memory")], ids=["port", "far"])
    def test_other_transports(self, transport, options, what):
        message = rf"^Transport must be verilated {what}, not {transport.value}$"
        with (pytest.raises(ValueError, match=message),
              open_session(DEFAULT, nodes=2, transport=transport, **options)):
            pass
