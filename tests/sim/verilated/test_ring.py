import os
import signal
import threading
import time

import numpy as np
import pytest

from sim.verilated import ring as verilated_ring
from sim.verilated.build import build_ring
from sim.verilated.ring import NEVER, VerilatedRing
from tests.refusals import refuses
from tests.sim.verilated.probe import STAMP, Probe

SEEDS = range(4)


@pytest.fixture(scope="module")
def library():
    return build_ring(Probe())


@pytest.fixture
def ring(library):
    with VerilatedRing(library, nodes=4) as ring:
        yield ring


def reports(ring, node, *, limit=10_000):
    """Return the cycles and data of all words in the next packet of a node."""
    ring.run(limit, until_packet_at=node)
    packet = ring.receive(node)
    assert packet is not None, ring.describe()
    return packet[0::2].astype(int), packet[1::2].astype(int)


def load(ring, seed):
    """Set random parameters of links, and send packets to every node."""
    random = np.random.default_rng(seed)
    for link in ring.links:
        link.set_latency(data=int(random.integers(1, 40)), credit=int(random.integers(1, 40)))
        denominator = int(random.integers(1, 10))
        link.set_rate(int(random.integers(1, denominator + 1)), denominator)
    ring.links[0].corrupt(word=int(random.integers(100)), bit=int(random.integers(33)))
    for node in range(ring.nodes):
        for _ in range(20):
            words = random.integers(0, 1 << 32, random.integers(1, 60), dtype=np.uint32)
            words[random.random(len(words)) < 0.5] = STAMP
            ring.send(node, words)


def outcome(ring, cycles):
    """Run a ring and return all its results: packets of each node, counters, and the complete final state."""
    ring.run(cycles)
    packets = []
    for node in range(ring.nodes):
        while (packet := ring.receive(node)) is not None:
            packets.append((node, packet.tolist()))
    return packets, ring.describe(), [link.status() for link in ring.links], ring.save()


@pytest.mark.parametrize("nodes", [1, 2, 3, 16])
def test_packets_reach_the_next_node(library, nodes):
    with VerilatedRing(library, nodes=nodes) as ring:
        for node in range(nodes):
            ring.send(node, [node, STAMP, 1000 + node])
        for node in range(nodes):
            cycles, words = reports(ring, (node + 1) % nodes)
            assert words.tolist() == [node, 2, 1000 + node]
            assert cycles.tolist() == [17, 18, 19]


@pytest.mark.parametrize("data", [1, 2, 15, 16, 17, 200])
@pytest.mark.parametrize("credit", [1, 16, 33])
def test_latency_is_exact(ring, data, credit):
    def second_packet(data, credit):
        ring.reset()
        ring.links[2].set_latency(data=data, credit=credit)
        for _ in range(2):
            ring.send(2, [STAMP] * 3)
        first, stamps = reports(ring, 3)
        assert (first - stamps == data).all()
        second, stamps = reports(ring, 3)
        assert (second - stamps == data).all()
        return stamps[0]

    # The second packet waits for the credit of the first one, so both latencies are part of its delay.
    assert second_packet(data, credit) - second_packet(1, 1) == data - 1 + credit - 1


@pytest.mark.parametrize(("numerator", "denominator"), [(1, 1), (1, 2), (2, 3), (3, 7), (1, 100)])
def test_rate_delays_words_in_order(ring, numerator, denominator):
    ring.links[0].set_rate(numerator, denominator)
    words = [STAMP] * 50
    ring.send(0, words)
    arrivals, stamps = reports(ring, 1)
    slot = 0
    for arrival, stamp in zip(arrivals, stamps, strict=True):
        slot = max((stamp + 16) * numerator, slot + denominator)
        assert arrival == -(-slot // numerator)
    assert arrivals[-1] - arrivals[0] == -(-49 * denominator // numerator)


def test_latency_change_never_reorders(ring):
    ring.links[0].set_latency(data=100)
    ring.send(0, [STAMP] * 20)
    ring.run(10)
    ring.links[0].set_latency(data=1)
    arrivals, stamps = reports(ring, 1)
    assert stamps.tolist() == list(range(1, 21))
    assert arrivals.tolist() == list(range(101, 121))


def test_cut_loses_words_of_its_cycles_alone(ring):
    ring.links[0].cut(5, 8)
    ring.send(0, [STAMP] * 10)
    arrivals, stamps = reports(ring, 1)
    assert stamps.tolist() == [1, 2, 3, 4, 8, 9, 10]
    assert (arrivals - stamps == 16).all()
    status = ring.links[0].status()
    assert (status.words_carried, status.words_dropped) == (7, 3)


def test_cut_loses_credits(ring):
    for _ in range(2):
        ring.send(0, [STAMP])
    reports(ring, 1)
    status = ring.links[0].status()
    assert (status.credits_carried, status.credits_in_flight) == (1, 1)
    ring.reset()
    ring.links[0].cut(10)
    for _ in range(2):
        ring.send(0, [STAMP])
    reports(ring, 1)
    ring.run(1000)
    status = ring.links[0].status()
    assert (status.cut_from, status.cut_until) == (10, NEVER)
    assert (status.words_carried, status.credits_carried, status.credits_dropped) == (1, 0, 1)
    assert ring.status(0).input_packets == 1
    assert ring.status(0).waits > 900
    assert "link 0 -> 1 (CUT): 0 words in flight, 1 carried" in ring.describe()
    ring.links[0].mend()
    ring.reset()
    ring.send(0, [7])
    assert reports(ring, 1)[1].tolist() == [7]


def test_corruption_flips_one_bit_of_one_word(ring):
    ring.links[3].corrupt(word=4, bit=31)
    ring.links[3].corrupt(word=1, bit=0)
    ring.links[3].corrupt(word=4, bit=3)
    ring.send(3, range(6))
    assert reports(ring, 0)[1].tolist() == [0, 0, 2, 3, 4 ^ 1 << 31 ^ 8, 5]
    assert ring.links[3].status().words_corrupted == 2


def test_corruption_of_last_joins_and_splits_packets(ring):
    ring.links[0].corrupt(word=1, bit=32)
    ring.send(0, [1, 2, 3])
    assert reports(ring, 1)[1].tolist() == [1, 2]
    assert reports(ring, 1)[1].tolist() == [3]


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_and_quanta_change_nothing(library, seed):
    print(f"seed {seed}")
    outcomes = []
    for threads, quantum in [(1, 16), (2, 16), (3, 5), (4, 1), (9, 1000)]:
        with VerilatedRing(library, nodes=4, threads=threads) as ring:
            ring.set_quantum(quantum)
            load(ring, seed)
            waits = [ring.run(10_000, until_packet_at=node) for node in (2, 1, 3, 0)]
            outcomes.append((waits, outcome(ring, 5000)))
    assert all(result == outcomes[0] for result in outcomes)


def test_threads_change_during_a_run(library):
    with VerilatedRing(library, nodes=4) as ring, VerilatedRing(library, nodes=4) as other:
        load(ring, 1)
        load(other, 1)
        for threads in (2, 1, 4, 3):
            other.set_threads(threads)
            other.run(500)
        ring.run(2000)
        assert outcome(ring, 3000) == outcome(other, 3000)


@pytest.mark.parametrize("seed", SEEDS)
def test_restored_state_goes_on_identically(library, seed):
    print(f"seed {seed}")
    with VerilatedRing(library, nodes=4) as ring, VerilatedRing(library, nodes=4, threads=2) as fresh:
        load(ring, seed)
        ring.run(100 + 37 * seed)
        state = ring.save()
        expected = outcome(ring, 3000)
        ring.restore(state)
        assert ring.save() == state
        assert outcome(ring, 3000) == expected
        fresh.restore(state)
        assert outcome(fresh, 3000) == expected


def test_reset_begins_anew(library):
    with VerilatedRing(library, nodes=4) as ring, VerilatedRing(library, nodes=4) as fresh:
        load(ring, 1)
        ring.run(333)
        ring.reset()
        assert ring.cycle == 0
        assert ring.receive(0) is None
        load(ring, 2)
        load(fresh, 2)
        assert ring.save() == fresh.save()
        assert outcome(ring, 3000) == outcome(fresh, 3000)


def test_run_stops_at_a_packet(ring):
    assert ring.run(0) == 0
    assert ring.run(21) == 21
    ring.send(0, [1])
    assert ring.run(1000, until_packet_at=1) == 27
    assert ring.cycle == 48
    assert ring.run(1000, until_packet_at=1) == 0
    assert ring.receive(1).tolist() == [38, 1]
    assert ring.run(1000, until_packet_at=1) == 1000
    assert ring.receive(1) is None


@pytest.mark.parametrize("grid", [16, 48, 1 << 20])
def test_slices_change_nothing(library, monkeypatch, grid):
    """Cycles and states do not depend on the number of cycles for which the library runs without interruption."""
    results = []
    for size in (1 << 40, 1 << 6):
        monkeypatch.setattr(verilated_ring, "_SLICE", size)
        with VerilatedRing(library, nodes=4) as ring:
            ring.set_grid(grid)
            load(ring, 3)
            cycles = [ring.run(3000, until_packet_at=node) for node in (2, 0, 1, 1)]
            results.append((cycles, ring.cycle, outcome(ring, 1001)))
    assert results[0] == results[1]


def test_signals_during_a_run(ring):
    """A signal is handled while the library runs, and not only after billions of cycles."""
    def stop(number, frame):
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, stop)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        begun = time.monotonic()
        timer.start()
        with pytest.raises(InterruptedError):
            ring.run(1 << 40)
        assert time.monotonic() - begun < 10
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)


def test_failed_assertion_names_the_node(ring):
    ring.send(1, [1] * 4000)
    with pytest.raises(RuntimeError, match="an assertion in the gateware of node 2 failed before cycle"):
        ring.run(10_000)


def test_errors(library, ring):
    refuses("Ring size must be between 1 and 255 nodes, not 256", VerilatedRing, library, nodes=256)
    refuses("Thread count must be at least 1, not 0", VerilatedRing, library, threads=0)
    refuses("Node must be between 0 and 3, not 4", ring.send, 4, [1])
    refuses("Packet must be one sequence of at least one word, not of shape (0,)", ring.send, 0, [])
    refuses("Cycle count must not be negative, not -1", ring.run, -1)
    refuses("Quantum must be at least 1 cycle, not 0", ring.set_quantum, 0)
    refuses("Data latency must be between 1 and 4294967295 cycles, not 0", ring.links[0].set_latency, data=0)
    refuses("Credit latency must be between 1 and 4294967295 cycles, not -1", ring.links[0].set_latency, credit=-1)
    refuses("Rate must be a fraction above 0 and at most 1, not 3/2", ring.links[0].set_rate, 3, 2)
    refuses("A cut must be of cycles in ascending order, not from 8 to 5", ring.links[0].cut, 8, 5)
    refuses("Bit to corrupt must be between 0 and 32, not 33", ring.links[0].corrupt, word=0, bit=33)
    refuses("Word to corrupt must be one of those to come, from 0, not -1", ring.links[0].corrupt, word=-1, bit=0)
    with VerilatedRing(library, nodes=3) as smaller, \
            pytest.raises(ValueError, match=r"^State must be one saved from a ring of the same library and size$"):
        smaller.restore(ring.save())
