"""Rings of nodes from several libraries, in which every node behaves as in a ring of its own library."""

import pytest
from pywellen import Waveform

from sim.verilated.build import build_ring
from sim.verilated.native import Arithmetic
from sim.verilated.ring import VerilatedRing
from tests.refusals import refuses
from tests.sim.verilated.probe import STAMP, Probe, TwoPorts
from tests.sim.verilated.test_ring import load, outcome, reports

#: Mask that nodes of the second kind apply to data.
MASK = 0xA5A5_0F0F
OTHERS = [(1,), (0, 3), (1, 2, 3)]


@pytest.fixture(scope="module")
def probe():
    return build_ring(Probe())


@pytest.fixture(scope="module")
def masking():
    return build_ring(Probe(depth=512, mask=MASK))


def mixture(probe, masking, masked, nodes=4):
    return [masking if node in masked else probe for node in range(nodes)]


def unmasked(result, masked):
    """Packets, counters and links of a result, after removing the masks of nodes from the data."""
    packets, text, links, _ = result
    return [(node, [word ^ MASK if node in masked and index % 2 else word for index, word in enumerate(packet)])
            for node, packet in packets], text, links


@pytest.mark.parametrize("masked", OTHERS)
@pytest.mark.parametrize("seed", range(2))
def test_each_node_is_of_its_kind(probe, masking, masked, seed):
    """In a ring of different nodes, each node acts in the same cycles as in a ring of its own kind, for any number of
    threads and any quantum."""
    message = f"seed {seed}"
    with VerilatedRing(probe) as ring:
        load(ring, seed)
        expected = outcome(ring, 4000)
    results = []
    for threads, quantum in [(1, 16), (2, 16), (3, 5), (4, 1)]:
        with VerilatedRing(mixture(probe, masking, masked), threads=threads) as ring:
            assert ring.batched, message
            ring.set_quantum(quantum)
            load(ring, seed)
            results.append(outcome(ring, 4000))
    assert all(result == results[0] for result in results), message
    assert unmasked(results[0], masked) == expected[:3], message


def test_nodes_evaluated_together_and_alone(probe):
    """A library that evaluates its nodes one by one can be mixed with a library that evaluates them together."""
    results = []
    for library in (probe, [probe, build_ring(Probe(), batched=False)] * 2):
        with VerilatedRing(library, nodes=4, threads=2) as ring:
            assert ring.batched == (library is probe)
            load(ring, 1)
            results.append(outcome(ring, 4000)[:3])
    assert results[0] == results[1]


@pytest.mark.parametrize("masked", OTHERS)
def test_restored_state_goes_on_identically(probe, masking, masked):
    libraries = mixture(probe, masking, masked)
    with VerilatedRing(libraries) as ring, VerilatedRing(libraries, threads=2) as fresh:
        load(ring, 1)
        ring.run(137)
        state = ring.save()
        expected = outcome(ring, 3000)
        fresh.restore(state)
        assert outcome(fresh, 3000) == expected
        ring.reset()
        assert ring.cycle == 0
        load(ring, 2)
        with VerilatedRing(libraries) as new:
            load(new, 2)
            assert outcome(ring, 3000) == outcome(new, 3000)


def test_state_of_other_places_is_refused(probe, masking):
    libraries = [probe, masking, probe]
    with VerilatedRing(libraries) as ring:
        state = ring.save()
    for different in ([masking, probe, probe], probe, [masking] * 3):
        with VerilatedRing(different, nodes=3) as ring, \
                pytest.raises(ValueError, match=r"^State must be one saved from a ring of the same library and "):
            ring.restore(state)


def test_header_of_one_library(probe):
    """If all nodes are the same, a single library and a list of libraries result in the same header."""
    with VerilatedRing(probe, nodes=3) as single, VerilatedRing([probe] * 3) as other:
        assert single.header == other.header
        assert probe.digest.encode() in single.header


def test_failed_assertion_names_the_node(probe, masking):
    """A failed assertion names its node, and a node with a smaller report memory fails earlier."""
    for libraries, failing in [([probe, masking, probe], 1), ([masking, probe, probe], 1)]:
        with VerilatedRing(libraries) as ring:
            ring.send(0, [1] * 4000)
            with pytest.raises(RuntimeError, match=f"an assertion in the gateware of node {failing} failed before "):
                ring.run(10_000)
            reached = ring.cycle
        assert (reached < 2000) == (libraries[failing] is masking)


def test_wave_holds_all_nodes_and_changes_nothing(tmp_path):
    libraries = [build_ring(Probe(), traced=True), build_ring(Probe(depth=512, mask=MASK), traced=True)]
    results = []
    for wave in (False, True):
        with VerilatedRing(libraries, threads=2) as ring:
            if wave:
                ring.start_wave(tmp_path / "ring.fst")
            ring.send(0, [STAMP] * 20)
            ring.run(400)
            if wave:
                ring.stop_wave()
            results.append(outcome(ring, 100)[:3])
    assert results[0] == results[1]
    scopes = {variable.full_name.split(".")[0] for variable in Waveform(str(tmp_path / "ring.fst")).all_vars()}
    assert {"node0", "node1"} <= scopes


def test_words_arrive_in_their_cycles(probe, masking):
    with VerilatedRing([probe, masking]) as ring:
        ring.links[0].set_latency(data=40)
        ring.send(0, [STAMP, 7])
        ring.send(1, [STAMP, 7])
        cycles, words = reports(ring, 1)
        assert (cycles.tolist(), (words ^ MASK).tolist()) == ([41, 42], [1, 7])
        cycles, words = reports(ring, 0)
        assert (cycles.tolist(), words.tolist()) == ([17, 18], [1, 7])


def test_errors(probe):
    refuses("Libraries must be one for each of the 3 nodes, not 2", VerilatedRing, [probe] * 2, nodes=3)
    refuses("Ring size must be between 1 and 255 nodes, not 0", VerilatedRing, [])
    refuses("Nodes of a ring must have one kind of ports, not 1 with credits and 2 with replay", VerilatedRing,
            [probe, build_ring(TwoPorts())])
    with pytest.raises(ValueError, match=r"^Nodes of a ring must have one arithmetic, not native and gateware$"):
        VerilatedRing([build_ring(Probe(), arithmetic=Arithmetic.NATIVE), probe])
    with pytest.raises(ValueError, match=r"^Nodes of a ring must have one kind of build, not untraced and traced$"):
        VerilatedRing([probe, build_ring(Probe(), traced=True)])
    with VerilatedRing([probe] * 2) as ring, pytest.raises(ValueError, match=r"^Node 1 must have a far memory$"):
        ring.far_memory(1)
