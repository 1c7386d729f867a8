# amaranth: UnusedElaboratable=no
"""Links with arbitrary wiring: every wire and every kind of fault, compared with a model."""

import dataclasses

import numpy as np
import pytest

from hdl.ring.ports import port_names
from host.transports.pysim import PysimRing
from sim.link_faults import RandomFaults, wire_number, wires
from sim.verilated.build import build_ring
from sim.verilated.ports import describe_ports
from sim.verilated.ring import VerilatedRing
from tests.refusals import refuses
from tests.sim.verilated.probe import STAMP, Probe, TwoPorts

LATENCY = 16
#: Wiring in which ports 0 form a ring of all nodes, ports 1 of two nodes are connected, and the third node's port 1
#: is connected to itself.
WIRING = [((0, 0), (1, 0)), ((1, 0), (2, 0)), ((2, 0), (0, 0)), ((0, 1), (1, 1)), ((1, 1), (0, 1)), ((2, 1), (2, 1))]


@pytest.fixture(scope="module")
def library():
    return build_ring(TwoPorts())


@pytest.fixture(scope="module")
def credits_library():
    return build_ring(Probe())


@dataclasses.dataclass(frozen=True)
class Seen:
    """A word that was on the wires of an input port."""

    cycle: int
    port: int
    kind: int
    last: int
    check: int
    data: int


def take(ring, node):
    """Read the reports of a node; return the words on its wires in order, and the levels of its lines in each
    report."""
    seen, levels = [], []
    while (packet := ring.receive(node)) is not None:
        first, *data, line = (int(word) for word in packet)
        levels.append((first & 0x3FF, line & 0xFFFF, line >> 16))
        for port in range(2):
            valid, kind, last, *_ = (first >> 10 + 11 * port + bit & 1 for bit in range(3))
            if valid:
                seen.append(Seen(first & 0x3FF, port, kind, last, first >> 13 + 11 * port & 0xFF, data[port]))
    return seen, levels


def line_of(ring):
    """Return the levels of the line at port 0 of node 0, keyed by the cycle in which they arrive."""
    return {cycle - 1 - age: line >> age & 1 for cycle, line, _ in take(ring, 0)[1] for age in range(16)}


def expected(words, *, start, port):
    """Return the words of one host packet as they leave a link without faults, if sent from cycle ``start`` on."""
    return [Seen(start + n + 1 + LATENCY, port, word >> 1 & 1, int(n == len(words) - 1), word >> 8 & 0xFF, word)
            for n, word in enumerate(words)]


def words_for(generator, port, count):
    return [int(word) & ~1 | port for word in generator.integers(0, 1 << 32, count, dtype=np.uint32)]


def test_any_wiring(library):
    """In both simulators, ports are connected as the wiring specifies, with all of their wires."""
    generator = np.random.default_rng(1)
    with VerilatedRing(library, nodes=3, wiring=WIRING, threads=2) as ring:
        assert (ring.ports, ring.replay) == (2, True)
        other = PysimRing(TwoPorts, nodes=3, wiring=WIRING)
        ring.run(1)  # the other ring offers its first word in the second cycle
        words = {}
        for link in ring.links:
            node, port = link.source
            words[node, port] = words_for(generator, port, 12)
        for node in range(3):
            for item in (ring, other):
                item.send(node, np.array(words[node, 0] + words[node, 1], np.uint32))
        ring.run(399)
        other.run(400)
        for node in range(3):
            seen, levels = take(ring, node)
            assert (seen, levels) == take(other, node)
            for link in ring.links:
                source, port = link.source
                if link.target[0] == node:
                    start = 1 + 12 * port
                    want = expected(words[source, port], start=start, port=link.target[1])
                    want = [dataclasses.replace(item, last=int(port == 1 and n == 11)) for n, item in enumerate(want)]
                    assert [item for item in seen if item.port == link.target[1]] == want
            for cycle, *lines in levels:
                for port, line in enumerate(lines):
                    # Before its first level arrives, the line of a signal is low.
                    times = [cycle - 1 - age - LATENCY for age in range(16)]
                    assert line == sum((time >> 1 + port & 1 if time >= 0 else 0) << age
                                       for age, time in enumerate(times)), (cycle, port)
        assert [link.status().words_carried for link in ring.links] == [12] * 6


def test_a_port_without_a_link(library):
    """If a port has no link, words sent to it are lost, it receives none, and its line is low."""
    with VerilatedRing(library, nodes=2, wiring=[((0, 1), (1, 0))]) as ring:
        ring.send(0, [2, 5, 4, 3])
        ring.send(1, [9, 8])
        ring.run(100)
        seen, levels = take(ring, 1)
        assert [(word.port, word.data) for word in seen] == [(0, 5), (0, 3)]
        assert all(line == (0, 0) for _, *line in map(list, levels) for line in [tuple(line)])
        assert take(ring, 0) == ([], [])


@pytest.mark.parametrize("seed", range(3))
def test_random_faults(library, seed):
    """In both simulators, random faults depend only on the seed, and not on the number of threads or the quantum."""
    faults = RandomFaults(rate=0.1, seed=seed)
    generator = np.random.default_rng(seed)
    words = [words_for(generator, 0, 300) for _ in range(2)]
    wiring = [((0, 0), (1, 0)), ((1, 0), (0, 0))]
    outcomes = []
    for threads, quantum in [(1, 16), (2, 16), (2, 3), (1, 1)]:
        with VerilatedRing(library, nodes=2, wiring=wiring, threads=threads) as ring:
            ring.set_quantum(quantum)
            ring.set_faults(faults)
            for node in range(2):
                ring.send(node, words[node])
            ring.run(700)
            outcomes.append(([take(ring, node) for node in range(2)], [link.faults() for link in ring.links],
                             [link.status() for link in ring.links]))
    assert all(item == outcomes[0] for item in outcomes)
    reports, counts, _ = outcomes[0]
    names = wires(replay=True)
    for link in range(2):
        want, flips = [], dict.fromkeys(("data", "last", "valid", "kind", "check", "line"), 0)
        for cycle in range(700):
            word = words[link][cycle - 1] if 1 <= cycle <= 300 else 0
            valid = int(1 <= cycle <= 300)
            # The wires keep the last word that the host has offered. After a packet, this is the packet's last word.
            shown = word if valid else words[link][-1] if cycle > 300 else 0
            flit = {"valid": valid, "kind": shown >> 1 & 1, "last": int(cycle >= 300), "check": shown >> 8 & 0xFF,
                    "data": shown}
            number = faults.wire(link, cycle, replay=True)
            if number is not None:
                name, _, bit = names[number].partition("[")
                if name != "line":
                    flit[name] ^= 1 << int(bit.removesuffix("]") or 0)
                flips[name] += bool(name == "line" or valid or name == "valid")
            if flit.pop("valid") and cycle + LATENCY < 700:
                want.append((cycle + LATENCY, flit["data"], flit["kind"], flit["last"], flit["check"]))
        seen, _ = reports[1 - link]
        # The last words have not been reported to the host yet.
        assert len(seen) > 165
        assert [(item.cycle, item.data, item.kind, item.last, item.check) for item in seen] == want[:len(seen)]
        assert dataclasses.asdict(counts[link]) == {
            **{name: flips[name] for name in ("data", "last", "valid", "kind", "check")}, "back": flips["line"],
            **dict.fromkeys((f"{what}_{how}" for what in ("words", "packets")
                             for how in ("dropped", "doubled", "swapped")), 0)}
        assert counts[link].total > 20, counts[link]
    for link, (_, levels) in enumerate(reports):
        for cycle, line, _ in levels:
            times = [cycle - 1 - age - LATENCY for age in range(16)]
            assert line == sum((time >= 0 and time >> 1 & 1 ^ (faults.wire(link, time, replay=True) == 43)) << age
                               for age, time in enumerate(times))
    with VerilatedRing(library, nodes=2, wiring=wiring) as ring:
        ring.set_faults(faults)
        ring.run(1)
        for node in range(2):
            ring.send(node, words[node])
        ring.run(699)
        reports = [take(ring, node) for node in range(2)]
        counts = [link.faults() for link in ring.links]
    # In the ring of Amaranth's simulator, the host offers its first word in the second cycle.
    other = PysimRing(TwoPorts, nodes=2, wiring=wiring, faults=faults)
    for node in range(2):
        other.send(node, np.array(words[node], np.uint32))
    other.run(700)
    assert [take(other, node) for node in range(2)] == reports
    assert [sum(link.values()) for link in other.faults] == [count.total for count in counts]


@pytest.mark.parametrize("wire", ["data[0]", "data[31]", "last", "kind", "check[0]", "check[7]"])
def test_one_flip_of_a_word(library, wire):
    with VerilatedRing(library, nodes=2, wiring=[((0, 0), (1, 0))]) as ring:
        words = words_for(np.random.default_rng(7), 0, 8)
        want = expected(words, start=0, port=0)
        name, _, bit = wire.partition("[")
        flip = 1 << int(bit.removesuffix("]") or 0)
        want[5] = dataclasses.replace(want[5], **{name: getattr(want[5], name) ^ flip})
        for options in ({"word": 5}, {"cycle": 6}):
            ring.reset()
            ring.links[0].flip(wire, **options)
            ring.send(0, words)
            ring.run(100)
            assert take(ring, 1)[0] == want
            assert getattr(ring.links[0].faults(), name) == ring.links[0].faults().total == 1
            assert ring.links[0].status().words_corrupted == 1


def test_flips_of_valid_lose_and_invent_words(library):
    with VerilatedRing(library, nodes=2, wiring=[((0, 0), (1, 0))]) as ring:
        ring.links[0].flip("valid", word=1)
        ring.links[0].flip("valid", cycle=40)
        ring.links[0].flip("check[3]", cycle=40)
        ring.links[0].flip("kind", cycle=50)  # flips a wire in a cycle without a word
        ring.send(0, [4, 6, 8 | 1 << 8])
        ring.run(100)
        assert [(word.cycle, word.data, word.check) for word in take(ring, 1)[0]] == [
            (17, 4, 0), (19, 264, 1), (56, 264, 9)]
        status, faults = ring.links[0].status(), ring.links[0].faults()
        assert (status.words_sent, status.words_carried, status.words_dropped, status.words_corrupted) == (3, 3, 1, 0)
        assert (faults.valid, faults.check, faults.kind, faults.total) == (2, 1, 0, 3)


def test_flips_of_the_line(library):
    """A bit flip on the backward line of a link changes its level for only one cycle."""
    with VerilatedRing(library, nodes=2, wiring=[((0, 0), (1, 0)), ((1, 0), (0, 0))]) as ring:
        ring.links[0].flip("line", cycle=33)
        ring.send(1, [2] * 60)
        ring.run(400)
        levels = {cycle - LATENCY: level for cycle, level in line_of(ring).items()}
        assert {time for time, level in levels.items() if time >= 0 and level != time >> 1 & 1} == {33}
        assert ring.links[0].faults().back == 1


def test_flips_of_credits(credits_library):
    """A lost credit delays the second packet, and a spurious credit lets it pass."""
    with VerilatedRing(credits_library, nodes=2) as ring:
        def packets(*flips):
            ring.reset()
            for cycle in flips:
                ring.links[0].flip("credit", cycle=cycle)
            ring.send(0, [STAMP])
            ring.send(0, [STAMP])
            ring.run(400)
            stamps = []
            while (packet := ring.receive(1)) is not None:
                stamps.append(int(packet[1]))
            return stamps

        (first, second), = [packets()]
        sent = second - 2 - LATENCY  # a credit takes one cycle to be counted and one cycle to reach the wires
        assert packets(sent) == [first]
        assert packets(sent - 5) == [first, second - 5]
        assert ring.links[0].faults().back == 1
        assert ring.links[0].status().credits_carried == 3


@pytest.mark.parametrize(("change", "target", "want"), [
    ("drop", {"word": 2}, [0, 1, 3, 4, 5, 6, 7, 8]), ("double", {"word": 2}, [0, 1, 2, 2, 3, 4, 5, 6, 7, 8]),
    ("swap", {"word": 2}, [0, 1, 3, 2, 4, 5, 6, 7, 8]), ("drop", {"packet": 1}, [0, 1, 2, 6, 7, 8]),
    ("double", {"packet": 1}, [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8]),
    ("swap", {"packet": 1}, [0, 1, 2, 6, 7, 8, 3, 4, 5]),
])
def test_words_and_packets(library, change, target, want):
    """A word or packet can be dropped, duplicated or swapped among three packets of three words."""
    with VerilatedRing(library, nodes=2, wiring=[((0, 0), (1, 0))]) as ring:
        getattr(ring.links[0], change)(**target)
        ring.run(10)
        state = ring.save()
        for _ in range(2):
            for packet in range(3):
                ring.send(0, [4 * (3 * packet + n) for n in range(3)])
            ring.run(16)
            middle = ring.save()
            ring.run(100)
            seen, _ = take(ring, 1)
            assert [word.data // 4 for word in seen] == want
            assert [word.last for word in seen] == [int(number % 3 == 2) for number in want]
            arrivals = [word.cycle for word in seen]
            assert arrivals == sorted(set(arrivals))
            what = next(iter(target))
            name = f"{what}s_{ {'drop': 'dropped', 'double': 'doubled', 'swap': 'swapped'}[change]}"
            assert getattr(ring.links[0].faults(), name) == ring.links[0].faults().total == 1
            ring.restore(middle)
            ring.run(100)
            assert take(ring, 1)[0] == seen
            ring.restore(state)


def test_the_line_through_cuts_and_changes_of_latency(library):
    with VerilatedRing(library, nodes=2, wiring=[((0, 0), (1, 0)), ((1, 0), (0, 0))]) as ring:
        ring.send(1, [2] * 120)
        ring.links[0].cut(10, 20)
        ring.run(40)
        ring.links[0].set_latency(credit=5)
        ring.run(32)
        ring.links[0].set_latency(credit=9)
        ring.run(600)
        levels = line_of(ring)

        def level(cycle):
            latency = 16 if cycle < 40 else 5 if cycle < 72 else 9
            if 72 <= cycle < 76:  # because the latency increases, no level arrives for some cycles
                return None
            time = cycle - latency
            return 0 if time < 0 or 10 <= time < 20 else time >> 1 & 1
        known = {cycle: level(cycle) for cycle in levels if level(cycle) is not None and not 40 <= cycle < 45
                 and not 72 <= cycle < 81}
        assert len(known) > 80
        assert {cycle: levels[cycle] for cycle in known} == known
        assert ring.links[0].status().words_in_flight == 0


def test_settings_survive_a_reset(library):
    with VerilatedRing(library, nodes=2, wiring=[((0, 0), (1, 0))]) as ring:
        ring.links[0].set_faults(RandomFaults(rate=1.0, seed=3))
        ring.links[0].drop(word=5)
        ring.run(64)
        count = ring.links[0].faults().total
        assert 1 <= count < 64
        ring.reset()
        assert ring.links[0].faults().total == 0
        ring.run(64)
        assert ring.links[0].faults().total == count
        ring.links[0].set_faults(None)
        ring.run(64)
        assert ring.links[0].faults().total == count


def test_errors(library, credits_library):
    message = r"^Ends of links must be ports 0 to 1 of nodes 0 to 1, not port 2 of node 0$"
    with pytest.raises(ValueError, match=message):
        VerilatedRing(library, nodes=2, wiring=[((0, 2), (1, 0))])
    message = r"^Ends of links must be ports 0 to 0 of nodes 0 to 3, not port 1 of node 0$"
    with pytest.raises(ValueError, match=message):
        VerilatedRing(credits_library, wiring=[((0, 0), (0, 1))])
    with pytest.raises(ValueError, match=r"^A port must receive on one link, not port 0 of node 1 on two$"):
        VerilatedRing(library, nodes=2, wiring=[((0, 0), (1, 0)), ((1, 0), (1, 0))])
    refuses("Node count must be at least 1, not 0", VerilatedRing, library, nodes=0, wiring=[])
    refuses("Fault rate must be between 0 and 1, not 1.5", RandomFaults, rate=1.5)
    refuses("Seed of faults must be between 0 and 2^64 - 1, not -1", RandomFaults, rate=0, seed=-1)
    with VerilatedRing(library, nodes=2, wiring=[((0, 0), (1, 0))]) as ring:
        link = ring.links[0]
        for call, text in [
            (lambda: link.flip("credit", cycle=1),
             "Wire must be data[0] to data[31], last, valid, kind, line, check[0] to check[7], "
             "not 'credit'"),
            (lambda: link.flip(44, cycle=1), "Wire must be between 0 and 43, not 44"),
            (lambda: link.flip("line", word=1), "A flip of line must be in a cycle, not in word 1"),
            (lambda: link.flip("kind"), "A flip must be in a word or in a cycle, not in word None and cycle None"),
            (lambda: link.drop(), "To drop, there must be a word or a packet, not word None and packet None"),
            (lambda: link.swap(word=-1), "Word of a fault must be one of those to come, from 0, not -1"),
            (lambda: link.double(packet=-1), "Packet of a fault must be one of those to come, from 0, not -1"),
        ]:
            refuses(text, call)
        ring.run(3)
        refuses("Cycle of a fault must be one of those to come, from 3, not 2", link.flip, 5, cycle=2)
    with VerilatedRing(library, nodes=2, wiring=[((0, 0), (1, 0))]) as first, \
            VerilatedRing(library, nodes=2, wiring=[((0, 0), (1, 1))]) as other, \
            pytest.raises(ValueError, match=r"^State must be one saved from a ring of the same library and size$"):
        other.restore(first.save())


def test_ports():
    assert [port_names(number) for number in range(2)] == [("ring_i", "ring_o"), ("ring_1_i", "ring_1_o")]
    assert wire_number("last", replay=False) == wire_number("last", replay=True) == 32
    assert (len(wires(replay=False)), len(wires(replay=True))) == (35, 44)
    for names, text in [(["clk"], "none"), (["ring_1_o__valid"], "ring_1"),
                        (["ring_o__valid", "ring_1_o__check"], "ring, ring_1")]:
        with pytest.raises(ValueError, match=rf"with links of one kind, not {text}$"):
            describe_ports(dict.fromkeys(names, 1))
    assert "#define RING_FAR_LANES 0\n" in describe_ports({"ring_o__valid": 1})
    text = describe_ports({"ring_o__valid": 1, "far__row": 12, "far__answer__0": 32, "far__answer__1": 32})
    assert text.endswith("#define RING_FAR_LANES 2\n#define RING_FAR_ROW_BITS 12\n"
                         "#define RING_EACH_FAR_LANE(f) f(0) f(1)\n")
