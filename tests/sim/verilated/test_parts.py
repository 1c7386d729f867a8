# amaranth: UnusedElaboratable=no
"""Rings in several processes have the same cycles, words and counters as in one process; processes may die."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from sim.link_faults import RandomFaults
from sim.verilated.build import build_ring
from sim.verilated.exchange import Part, SharedExchange
from sim.verilated.part_processes import LocalProcesses
from sim.verilated.parts import PartedRing, ProcessEndedError, bounds
from sim.verilated.processes import is_alive
from sim.verilated.ring import VerilatedRing
from tests.refusals import refuses
from tests.sim.verilated.probe import STAMP, Probe, TwoPorts
from tests.sim.verilated.test_ring import load, outcome

LATENCIES = (16, 64, 256)


@pytest.fixture(scope="module")
def library():
    return build_ring(Probe())


def traffic(ring, latency, seed, *, faults=None):
    """Results of a ring that sends random packets after a reset, over links with the given latency."""
    random = np.random.default_rng(seed)
    ring.reset()
    ring.set_faults(faults)
    for link in ring.links:
        link.set_latency(data=latency, credit=latency)
    for node in range(ring.nodes):
        for _ in range(8):
            words = random.integers(0, 1 << 32, random.integers(1, 40), dtype=np.uint32)
            words[random.random(len(words)) < 0.5] = STAMP
            ring.send(node, words)
    waits = [ring.run(5000, until_packet_at=node) for node in (ring.nodes - 1, 0, ring.nodes // 2)]
    packets, text, links, state = outcome(ring, 700)
    return waits, packets, text, links, [link.faults() for link in ring.links], ring.cycle, state


@pytest.mark.parametrize("nodes", [4, 8, 16])
def test_any_number_of_processes(library, nodes):
    expected = {}
    with VerilatedRing(library, nodes=nodes) as ring:
        for latency in LATENCIES:
            for grid in sorted({16, latency}):
                ring.set_grid(grid)
                expected[latency, grid] = traffic(ring, latency, nodes)[:-1]
    assert len({str(result) for result in expected.values()}) == len(expected)
    for number in (2, 4):
        with PartedRing(library, nodes=nodes, processes=LocalProcesses(number)) as ring:
            for (latency, grid), wanted in expected.items():
                ring.set_grid(grid)
                assert traffic(ring, latency, nodes)[:-1] == wanted, (number, latency, grid)


@pytest.mark.parametrize(("quantum", "threads"), [(1, 1), (7, 2), (64, 1), (1000, 3)])
def test_quanta_change_nothing(library, quantum, threads):
    """Results do not depend on the quantum, even if exchanges are 64 cycles apart rather than the default of 16."""
    with VerilatedRing(library, nodes=4) as ring, VerilatedRing(library, nodes=4, threads=threads) as other:
        for item in (ring, other):
            item.set_grid(64)
        other.set_quantum(quantum)
        assert traffic(ring, 64, 1) == traffic(other, 64, 1)
        for item in (ring, other):
            item.reset()
            load(item, 2)
        assert outcome(ring, 3000) == outcome(other, 3000)


def test_quanta_are_as_long_as_the_grid(library):
    with VerilatedRing(library, nodes=2) as ring:
        ring.set_grid(100)
        ring.send(0, [1])
        assert ring.run(1000, until_packet_at=1) == 100
        assert ring.run(30) == 30
        ring.receive(1)
        ring.send(0, [1])
        assert ring.run(1000, until_packet_at=1) == 70


def test_any_wiring():
    """Links with replay work between any ports of three processes, with faults and disturbances of all kinds."""
    library = build_ring(TwoPorts())
    wiring = [((0, 0), (1, 0)), ((1, 0), (2, 0)), ((2, 0), (0, 0)), ((0, 1), (1, 1)), ((1, 1), (0, 1)),
              ((2, 1), (2, 1))]
    results = []
    for processes in (None, LocalProcesses(2), LocalProcesses(3)):
        ring = (VerilatedRing(library, nodes=3, wiring=wiring) if processes is None else
                PartedRing(library, nodes=3, wiring=wiring, processes=processes))
        with ring:
            results.append([traffic(ring, 20, 3, faults=RandomFaults(rate=0.01, seed=1))[:-1]])
            for index, link in enumerate(ring.links):
                sent = link.status().words_sent
                link.set_latency(data=9 + index, credit=30 - index)
                link.set_rate(1, 1 + index % 2)
                link.flip("data[3]", word=sent + 2)
                link.drop(word=sent + 4)
                link.double(packet=link.status().packets_sent)
                link.swap(word=sent + 9)
                link.cut(ring.cycle + 60, ring.cycle + 70)
                with pytest.raises(ValueError, match=rf"^Word of a fault must be one of those to come, from {sent},"):
                    link.drop(word=sent - 1)
            for node in range(3):
                ring.send(node, np.arange(40, dtype=np.uint32))
            results[-1].append(outcome(ring, 600)[:-1])
            ring.links[0].mend()
            results[-1] += [link.faults() for link in ring.links]
    assert results[0] == results[1] == results[2]


def test_states(library):
    """A saved state is valid only for the same division into processes, and gives identical results when resumed."""
    with PartedRing(library, nodes=4, processes=LocalProcesses(2)) as ring, \
            VerilatedRing(library, nodes=4) as other:
        load(ring, 1)
        load(other, 1)
        for item in (ring, other):
            item.run(137)
        state = ring.save()
        expected = outcome(ring, 2000)
        assert expected[:-1] == outcome(other, 2000)[:-1]
        ring.restore(state)
        assert outcome(ring, 2000) == expected
        for item, foreign, whose in ((ring, other.save(), "library, size and processes"),
                                     (other, state, "library and size")):
            refuses(f"State must be one saved from a ring of the same {whose}", item.restore, foreign)


def test_failed_assertion_names_the_node(library):
    for processes in (1, 3):
        with PartedRing(library, nodes=4, processes=LocalProcesses(processes)) as ring:
            ring.send(1, [1] * 4000)
            with pytest.raises(RuntimeError, match="an assertion in the gateware of node 2 failed before cycle"):
                ring.run(10_000)
            assert ring.cycle > 1000


def test_messages_of_any_length():
    """Messages may be empty or longer than the queue, and may be sent in both directions at the same time."""
    last = os.urandom(300_000)
    code = ("import sys\nfrom sim.verilated.exchange import SharedExchange\n"
            "exchange = SharedExchange(int(sys.argv[1]), 1, 2)\nprint(flush=True)\ninput()\n"
            "for n in range(200):\n    came = exchange.mail({0: bytes([n]) * (n * 977)})\n"
            "    assert exchange.agree(n) == n + 5\n"
            "print(sum(came[0]))\n")
    descriptor = SharedExchange.create(2)
    child = subprocess.Popen([sys.executable, "-c", code, str(descriptor)], pass_fds=[descriptor], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    exchange = SharedExchange(descriptor, 0, 2)
    child.stdout.readline()
    child.stdin.write("\n")
    child.stdin.flush()
    for n in range(200):
        text = last if n == 199 else b"" if n % 3 else os.urandom(n * 501)
        assert exchange.mail({1: text}) == {1: bytes([n]) * (n * 977)}
        assert exchange.agree(n + 5) == n + 5
    assert int(child.communicate(timeout=60)[0]) == sum(last)
    refuses("process 1 has ended", exchange.mail, {1: b""}, error=RuntimeError)
    assert exchange.first_ended() == 1
    exchange.close()


def ended(processes, limit=10):
    """Return whether processes end within some seconds."""
    until = time.monotonic() + limit
    while any(map(is_alive, processes)):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_a_process_that_dies_while_the_ring_runs(library):
    """If a process dies while the ring runs, the message names it, and all other processes end."""
    processes = LocalProcesses(3)
    with PartedRing(library, nodes=6, processes=processes) as ring:
        started = [process.pid for process in processes._started]
        timer = threading.Timer(0.3, os.kill, (started[1], signal.SIGKILL))
        timer.start()
        begun = time.monotonic()
        with pytest.raises(ProcessEndedError, match=rf"^The ring's process 2 of 3 \(PID {started[1]}, SIGKILL\), "
                                                    r"which had nodes 4 to 5, has ended$"):
            ring.run(1 << 40)
        assert time.monotonic() - begun < 10
    assert ended(started)


def test_a_process_that_dies_while_the_ring_waits(library):
    processes = LocalProcesses(2)
    with PartedRing(library, nodes=2, processes=processes) as ring:
        ring.run(100)
        os.kill(processes._started[0].pid, signal.SIGTERM)
        processes._started[0].wait(10)
        with pytest.raises(ProcessEndedError, match=r"process 1 of 2 \(PID \d+, SIGTERM\), which had nodes 1 to 1, "):
            ring.status(1)
    refuses("Simulation must be used before it is closed", ring.status, 1)


def test_others_end_with_the_first(library):
    code = ("import sys\nfrom sim.verilated.build import build_ring\n"
            "from sim.verilated.part_processes import LocalProcesses\nfrom sim.verilated.parts import PartedRing\n"
            "from tests.sim.verilated.probe import Probe\n"
            "processes = LocalProcesses(3)\nring = PartedRing(build_ring(Probe()), nodes=3, processes=processes)\n"
            "print(*(one.pid for one in processes._started), flush=True)\n"
            "ring.run(1 << 40 if sys.argv[1] == 'runs' else 1)\ninput()\n")
    for doing in ("runs", "waits"):
        with subprocess.Popen([sys.executable, "-c", code, doing], stdout=subprocess.PIPE, stdin=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as first:
            pids = first.stdout.readline().split()
            time.sleep(0.3)
            first.kill()
            assert ended(pids)
            said = first.communicate(timeout=30)[1]
        assert re.search(r"process \d ends(: .*process 0 has ended|, since process 0 has ended)", said)


def test_errors(library):
    assert (bounds(8, 3), bounds(4, 4), bounds(5, 1)) == ((0, 2, 5, 8), (0, 1, 2, 3, 4), (0, 5))
    message = "^Processes must be between 1 and 4, the number of nodes, not "
    with pytest.raises(ValueError, match=rf"{message}0$"):
        bounds(4, 0)
    with pytest.raises(ValueError, match=rf"{message}5$"):
        PartedRing(library, nodes=4, processes=LocalProcesses(5))
    exchange = SharedExchange(SharedExchange.create(1), 0, 1)
    refuses("Each of 1 processes must have at least one node, not (0, 0)", Part, (0, 0), exchange)
    with VerilatedRing(library, nodes=4, part=Part((0, 4), exchange)) as ring, \
            pytest.raises(ValueError, match=r"^Grid must be between 1 and 4294967295 cycles, not 0$"):
        ring.set_grid(0)
    exchange.close()
    with PartedRing(library, nodes=4, processes=LocalProcesses(2)) as ring:
        for call in (ring.status, ring.receive, lambda node: ring.run(1, until_packet_at=node)):
            refuses("Node must be between 0 and 3, not 4", call, 4)
        with pytest.raises(ValueError, match=r"^Packet must be one sequence of at least one word, not of shape "):
            ring.send(3, [])
        refuses("Nodes must have far memories", ring.set_far_speed, latency=3)
