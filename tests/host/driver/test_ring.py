# amaranth: UnusedElaboratable=no
import dataclasses
import functools
import itertools

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.control.protocol import EventStatus, Operation, Space
from host.driver.command import Command
from host.driver.diagnosis import RingError
from host.driver.memory import Allocation
from host.driver.optimizer_settings import Rule, Settings
from host.driver.ring import Ring
from host.training.optimizers import SGD, Adam, AdamW
from host.transports import pysim
from host.transports.session import TransportName, open_session
from sim.golden import moments
from sim.golden import ring as golden
from sim.golden.ring import block_indices
from tests.host import rings
from tests.refusals import refuses

CONFIG = NodeConfig()
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, -3e38, 1, -1], dtype=np.float32)
OPTIMIZERS = {
    "sgd": SGD(learning_rate=0.1, clip=2.5),
    "momentum": SGD(learning_rate=0.1, momentum=0.9, dampening=0.5, weight_decay=0.25),
    "nesterov": SGD(learning_rate=0.1, momentum=0.9, nesterov=True),
    "adam": Adam(learning_rate=0.1, weight_decay=0.25, clip=0.5),
    "adamw": AdamW(learning_rate=0.1, weight_decay=0.5),
}


open_nodes = functools.partial(rings.open_nodes, config=CONFIG, timeout=3000)


def vectors(generator, nodes, length, *, density=0.6, special=0.02):
    """Random gradients: zeros, special numbers, and numbers with uniformly random bits."""
    values = generator.integers(0, 1 << 32, (nodes, length), dtype=np.uint32).view(np.float32)
    ordinary = generator.standard_normal((nodes, length)).astype(np.float32)
    kind = generator.random((nodes, length))
    values = np.where(kind < 0.9, ordinary, values)
    values = np.where(kind < special, generator.choice(SPECIAL, (nodes, length)), values)
    values[generator.random((nodes, length)) >= density] = 0
    return np.ascontiguousarray(values)


def assert_same(actual, expected):
    assert np.array_equal(actual.view(np.uint32), np.broadcast_to(golden.bits(golden.floats(expected)), actual.shape))


def words_sent(ring):
    return [counters["WORDS_SENT"] for counters in ring.counters.read()]


@pytest.fixture
def ring(devices):
    """Connected ring of two nodes, for tests that run no commands."""
    ring = Ring(devices, timeout=1000)
    ring.connect()
    return ring


class TestState:
    @pytest.mark.parametrize("length", [0, 1, 31, 33, 50, 64])
    def test_there_and_back(self, ring, length):
        """State is stored by the owner of each block, from the start of its plane, and planes are independent."""
        planes = range(ring.devices[0].config.memories.planes)
        states = [np.arange(1, length + 1, dtype=np.float32) * (plane - 0.5) for plane in planes]
        for plane in reversed(planes):
            ring.memory.write_state(states[plane], plane)
        for plane in planes:
            assert_same(ring.memory.read_state(length, plane), golden.bits(states[plane]))
            for rank, device in enumerate(ring.devices):
                owned = block_indices(length, 2)[(rank + 1) % 2]
                assert_same(device.read_memory(Space.STATE + plane, 0, len(owned)),
                            golden.bits(states[plane][owned]))
        assert_same(ring.memory.read_state(length), golden.bits(states[0]))

    @pytest.mark.parametrize("length", [0, 1, 2, 31, 33, 63, 96, 128])
    def test_packed(self, ring, length):
        """Words and rounding match the golden model; a plane holds twice as much state if it is packed."""
        state = np.random.default_rng(length).integers(0, 1 << 32, length, dtype=np.uint32)
        state[::7] = 0x7fff_ffff
        state[1::7] = 0x3f80_8000  # halfway between two bfloat16 numbers
        plane = ring.devices[0].config.memories.planes - 1
        ring.memory.write_state(state.view(np.float32), plane, packed_state=True)
        expected = moments.unpack(moments.pack(state), length)
        assert np.array_equal(ring.memory.read_state(length, plane, packed_state=True).view(np.uint32), expected)
        for rank, device in enumerate(ring.devices):
            owned = block_indices(length, 2)[(rank + 1) % 2]
            words = device.read_memory(Space.STATE + plane, 0, (len(owned) + 1) // 2)
            assert np.array_equal(words, moments.pack(state[owned]))

    @pytest.mark.parametrize(("packed_state", "length"), [(False, 64), (True, 128), (True, 70)])
    def test_clear(self, ring, packed_state, length):
        ones = np.ones(length, dtype=np.float32)
        planes = range(ring.devices[0].config.memories.planes)
        for plane in planes:
            ring.memory.write_state(ones, plane, packed_state=packed_state)
        ring.memory.clear_state(length, packed_state=packed_state)
        for plane in planes:
            assert not ring.memory.read_state(length, plane, packed_state=packed_state).view(np.uint32).any()


class TestSettings:
    @pytest.fixture
    def written(self, ring, monkeypatch):
        """Names of the registers of node 0 that have been written so far."""
        names = []
        submit = ring.devices[0].submit_write_register
        monkeypatch.setattr(ring.devices[0], "submit_write_register",
                            lambda name, value: names.append(name) or submit(name, value))
        return names

    def test_reach_the_registers(self, ring):
        settings = Settings(rule=Rule.ADAM, gradient_scale=0.1, learning_rate=0.2, clip=3, weight_factor=-0.0,
                            first_decay=0.5, first_gain=0.6, second_decay=0.7, second_gain=0.8, epsilon=1e-8,
                            nesterov=True, packed_state=True)
        ring.settings.write(settings)
        for device in ring.devices:
            assert device.read_fields("OPTIMIZER") == {"rule": 2, "nesterov": 1, "packed_state": 1}
            for name, value in settings.registers().items():
                assert repr(device.read_register(name)) == repr(value)

    def test_only_what_has_changed_is_written(self, ring, written):
        settings = Settings(rule=Rule.SGD, gradient_scale=0.1, learning_rate=0.2)
        ring.settings.write(settings)
        assert sorted(written) == sorted(settings.registers())
        written.clear()
        ring.settings.write(settings)
        assert written == []
        ring.settings.write(dataclasses.replace(settings, learning_rate=0.3, gradient_scale=np.float32(0.1)))
        assert written == ["LEARNING_RATE"]
        written.clear()
        ring.settings.write(dataclasses.replace(settings, learning_rate=0.3, epsilon=-0.0, packed_state=True))
        assert written == ["OPTIMIZER", "EPSILON"]

    def test_all_is_written_after_recovery(self, ring, written):
        settings = Settings(rule=Rule.SGD, gradient_scale=0.1, learning_rate=0.2)
        for bring_in_order in (ring.recover, ring.connect):
            ring.settings.write(settings)
            bring_in_order()
            written.clear()
            ring.settings.write(settings)
            assert sorted(written) == sorted(settings.registers())

    def test_all_is_written_after_a_failure(self, ring, written):
        settings = Settings(rule=Rule.SGD, gradient_scale=0.1, learning_rate=0.2)
        ring.settings.write(settings)
        with pytest.raises(ValueError, match=r"^Value of register OPTIMIZER must be a number of 6 bits, not 64$"):
            ring.settings.write(dataclasses.replace(settings, rule=64, learning_rate=0.5))
        written.clear()
        ring.settings.write(settings)
        assert sorted(written) == sorted(settings.registers())


class TestCollectives:
    @pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8, 16])
    @pytest.mark.parametrize("length", [0, 1, 33, 1300])
    def test_values_words_and_counts(self, nodes, length):
        generator = np.random.default_rng(nodes * 10_000 + length)
        gradients = vectors(generator, nodes, length)
        with open_nodes(nodes) as (ring, _):
            def prepare():
                ring.memory.write_gradients(list(gradients))
                ring.counters.clear()

            prepare()
            ring.collectives.all_reduce(length)
            total, traffic = golden.all_reduce(golden.bits(gradients))
            assert_same(ring.memory.read_gradients(length), total)
            assert words_sent(ring) == traffic.words.tolist()

            prepare()
            ring.collectives.reduce_scatter(length)
            scattered, traffic = golden.reduce_scatter(golden.bits(gradients))
            assert_same(ring.memory.read_gradients(length), scattered)
            assert words_sent(ring) == traffic.words.tolist()

    @pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8, 16])
    @pytest.mark.parametrize("length", [0, 1, 33, 1300])
    def test_fused_update(self, nodes, length):
        """Each optimizer runs two steps, first with unpacked and then with packed state."""
        generator = np.random.default_rng(nodes * 10_000 + length)
        gradients = vectors(generator, nodes, length)
        updated = golden.bits(vectors(generator, 1, length)[0])
        with open_nodes(nodes) as (ring, _):
            ring.memory.write_weights(golden.floats(updated))
            for optimizer, packed_state in itertools.product(OPTIMIZERS.values(), (False, True)):
                state = [np.zeros(length, dtype=np.uint32) for _ in range(optimizer.planes)]
                ring.memory.require(Allocation(length=length, planes=optimizer.planes, packed_state=packed_state))
                ring.memory.clear_state(length, packed_state=packed_state)
                for step in (1, 2):
                    numbers = dataclasses.asdict(optimizer.settings(step, gradient_scale=0.25))
                    ring.settings.write(Settings(**{**numbers, "packed_state": packed_state}))
                    ring.memory.write_gradients(list(gradients))
                    ring.counters.clear()
                    ring.collectives.fused_update(length)
                    del numbers["packed_state"]
                    update = golden.fused_update(golden.bits(gradients), updated, state, golden.settings(**numbers),
                                                 packed_state=packed_state)
                    updated, state = update.weights, update.state
                    assert_same(ring.memory.read_weights(length), updated)
                    assert words_sent(ring) == update.traffic.words.tolist()
                for plane, expected in enumerate(state):
                    assert_same(ring.memory.read_state(length, plane, packed_state=packed_state), expected)

    @pytest.mark.parametrize("nodes", [2, 3, 4])
    def test_weights_alone(self, nodes):
        length = 700
        weights = vectors(np.random.default_rng(nodes), nodes, length)
        with open_nodes(nodes) as (ring, _):
            for root in range(nodes):
                ring.memory.write_weights_of(list(weights))
                ring.collectives.broadcast(length, root=root)
                assert_same(ring.memory.read_weights(length), golden.broadcast(golden.bits(weights), root))
            ring.memory.write_weights_of(list(weights))
            ring.counters.clear()
            ring.collectives.all_gather(length)
            gathered, traffic = golden.all_gather(golden.bits(weights))
            assert_same(ring.memory.read_weights(length), gathered)
            assert words_sent(ring) == traffic.words.tolist()
            ring.collectives.quiesce()

    def test_same_bits_for_any_threads_and_latency(self):
        generator = np.random.default_rng(5)
        gradients, weights = vectors(generator, 4, 1000), vectors(generator, 1, 1000)[0]
        results = []
        for threads, latency in [(1, 16), (2, 16), (2, 1), (1, 90)]:
            with open_nodes(4, threads=threads, latency=latency) as (ring, _):
                ring.memory.write_weights(weights)
                ring.memory.write_gradients(list(gradients))
                ring.settings.write(Settings(rule=Rule.SGD, gradient_scale=0.25, learning_rate=0.5))
                outcome = ring.collectives.fused_update(1000)
                results.append((ring.memory.read_weights(1000).tobytes(), words_sent(ring), outcome.cycles))
        assert len({weights for weights, _, _ in results}) == 1
        assert all(words == results[0][1] for _, words, _ in results)
        cycles = [cycles for _, _, cycles in results]
        assert cycles[0] == cycles[1]
        assert cycles[2] < cycles[0] < cycles[3]

    def test_counts_of_units(self):
        """A block is encoded when it is first sent and after each addition, and is never decoded along the way."""
        nodes, length = 4, 4096  # four segments per block
        gradients = np.ones((nodes, length), dtype=np.float32)
        with open_nodes(nodes) as (ring, _):
            ring.settings.write(Settings(rule=Rule.SGD, gradient_scale=1, learning_rate=1))
            for operation, expected in (("fused_update", (3, 2, 1)), ("all_reduce", (4, 3, 4))):
                ring.memory.write_gradients(list(gradients))
                ring.counters.clear()
                getattr(ring.collectives, operation)(length)
                for counters in ring.counters.read():
                    counts = tuple(counters[name] for name in ("ENCODES", "COMPRESSED_ADDS", "DECODES"))
                    assert counts == tuple(4 * count for count in expected)

    def test_findings(self):
        with open_nodes(3) as (ring, _):
            gradients = np.ones((3, 100), dtype=np.float32)
            ring.memory.write_gradients(list(gradients))
            outcome = ring.collectives.all_reduce(100)
            assert outcome.cycles > 100
            assert outcome.local_nan == outcome.not_finite == ()
            gradients[1, 5] = np.nan
            ring.memory.write_gradients(list(gradients))
            outcome = ring.collectives.all_reduce(100)
            assert outcome.local_nan == (1,)
            assert outcome.not_finite
            gradients[:, 5] = 3e38
            ring.memory.write_gradients(list(gradients))
            outcome = ring.collectives.all_reduce(100)
            assert outcome.local_nan == ()
            assert outcome.not_finite


class TestFailures:
    def check_usable(self, ring, nodes):
        gradients = np.arange(nodes * 600, dtype=np.float32).reshape(nodes, 600)
        ring.memory.write_gradients(list(gradients))
        ring.collectives.all_reduce(600)
        assert_same(ring.memory.read_gradients(600), golden.all_reduce(golden.bits(gradients))[0])

    @pytest.mark.parametrize("link", [0, 3])
    def test_cut_link_is_named(self, link):
        with open_nodes(4) as (ring, simulation):
            ring.memory.write_gradients(list(np.ones((4, 2000), dtype=np.float32)))
            simulation.links[link].cut(simulation.cycle + 400)
            with pytest.raises(RingError) as caught:
                ring.collectives.all_reduce(2000)
            after = (link + 1) % 4
            lost = simulation.links[link].status().words_dropped
            assert str(caught.value).startswith(
                f"all-reduce failed: the link from node {link} to node {after} has not delivered {lost} words, and "
                f"for 6,000 cycles no word has moved\n")
            assert f"waited for a packet from node {link}" in str(caught.value)
            assert caught.value.cause == link
            assert len(str(caught.value).splitlines()) == 5
            simulation.links[link].mend()
            ring.recover()
            self.check_usable(ring, 4)

    def test_damaged_word(self):
        with open_nodes(4) as (ring, simulation):
            ring.memory.write_gradients(list(np.ones((4, 2000), dtype=np.float32)))
            carried = simulation.links[1].status().words_carried
            simulation.links[1].corrupt(word=carried + 300, bit=7)
            with pytest.raises(RingError, match=r"^all-reduce failed: node 2: .* ended with BAD_CRC: ") as caught:
                ring.collectives.all_reduce(2000)
            assert caught.value.cause == 2
            assert [event.status for event in caught.value.events].count(EventStatus.PEER_ABORT) == 3
            self.check_usable(ring, 4)

    def test_too_long(self):
        with open_nodes(2) as (ring, _):
            with pytest.raises(RingError, match=r"^all-reduce failed: node 0: .* ended with BAD_LENGTH: "):
                ring.collectives.all_reduce(CONFIG.memories.gradient + 32)
            self.check_usable(ring, 2)

    def test_recover_while_a_command_runs(self):
        """Recovery aborts a command that was sent to only one node and would wait forever for the other node."""
        with open_nodes(3) as (ring, _):
            ring.devices[1].push(Command(operation=Operation.ALL_REDUCE, rank=1, size=3, length=500))
            ring.recover()
            assert ring.devices[1].pop_event(0) is None
            self.check_usable(ring, 3)


class TestArguments:
    def test_no_devices(self):
        refuses("A ring must have at least one node", Ring, [])

    def test_gradients_for_other_nodes(self):
        with open_nodes(2) as (ring, _):
            with pytest.raises(ValueError, match=r"^Vectors must be one per node, 2, not 3$"):
                ring.memory.write_gradients([np.zeros(3, dtype=np.float32)] * 3)


class TestSession:
    @pytest.mark.parametrize(("options", "message"), [
        ({"nodes": 17}, r"^Ring must have between 1 and 16 nodes, not 17$"),
        ({"nodes": 2, "latency": 0}, r"^Latency must be an integer from 1 to 1000000, not 0$"),
        ({"nodes": 4, "grid": (2, 2), "transport": TransportName.SERIAL, "device": "/dev/null"},
         r"^Transport must be verilated or messages or pysim or board or golden for a grid, not serial$"),
    ])
    def test_errors(self, options, message):
        with pytest.raises(ValueError, match=message), open_session(CONFIG, **options):
            pass

    def test_wiring_of_a_grid_in_pysim(self, monkeypatch):
        def simulate(node, *, nodes, latency, wiring, faults):
            raise NotImplementedError(nodes, wiring)

        monkeypatch.setattr(pysim, "PysimRing", simulate)
        with pytest.raises(NotImplementedError) as caught:
            with open_session(CONFIG, nodes=4, grid=(2, 2), transport=TransportName.PYSIM, host_port=True):
                pass
        assert caught.value.args == (4, [
            ((0, 0), (1, 0)), ((0, 1), (2, 1)), ((1, 0), (0, 0)), ((1, 1), (3, 1)),
            ((2, 0), (3, 0)), ((2, 1), (0, 1)), ((3, 0), (2, 0)), ((3, 1), (1, 1))])

    def test_no_waves_from_pysim(self, tmp_path):
        options = {"nodes": 1, "transport": TransportName.PYSIM, "wave": tmp_path / "wave.fst"}
        with pytest.raises(ValueError, match=r"^Transport must be verilated or messages for a waveform, not pysim$"):
            with open_session(CONFIG, **options):
                pass
