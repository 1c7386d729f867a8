# amaranth: UnusedElaboratable=no
"""Quorum updates on simulated rings match the golden model bit for bit: host/features/quorum/feeding.py."""

import dataclasses

import numpy as np
import pytest

from hdl.control.protocol import EventStatus
from host.driver.diagnosis import RingError
from host.driver.optimizer_settings import Settings
from host.features.quorum.feeding import APPLY_LATE, COMPUTE, Closing, QuorumFeeder, QuorumModel, QuorumProgram
from sim.golden import masking
from sim.golden import ring as golden_ring
from sim.golden.codecs import WEIGHT_CODECS
from sim.golden.features.quorum.rounds import Close, QuorumRounds, apply_late, scale_table, stale_weights
from sim.link_faults import RandomFaults
from tests.host import rings
from tests.refusals import refuses

CONFIG = rings.CONFIGS["wide"]
LENGTH, NODES = 150, 4
FAST, SLOW = 2500, 10500


class RecordedRounds(QuorumRounds):
    """Quorum updates that also record the node and update of each computed gradient."""

    def __init__(self, **parameters):
        super().__init__(**parameters)
        self.computed = set()

    def ready(self, node, tag, gradient):
        self.computed.add((node, tag))
        super().ready(node, tag, gradient)


class Model:
    """Golden model of a ring that trains with quorum updates, starting from zero weights."""

    def __init__(self, closing, *, learning_rate=0.125):
        self.settings = Settings(rule=0, gradient_scale=123.0, learning_rate=learning_rate)
        self.rounds = RecordedRounds(nodes=NODES, length=LENGTH, weights=closing.weights)
        self.codec = WEIGHT_CODECS[CONFIG.weights.codec]
        self.master = golden_ring.bits(np.zeros(LENGTH, np.float32))
        self.closed = []
        self.seen = []

    def random(self, rank, number):
        generator = np.random.default_rng([rank, number])
        return generator.standard_normal(LENGTH).astype(np.float32) + self.master.view(np.float32) / np.float32(8)

    def close(self, closed, contributions):
        """When an update closes, apply its gradients to the golden weights."""
        self.closed.append(closed)
        scale = float(scale_table(1.0)[closed.index].view(np.float32))
        scalars = dataclasses.asdict(dataclasses.replace(self.settings, gradient_scale=scale))
        del scalars["packed_state"]
        update = golden_ring.fused_update(
            np.stack(contributions), self.master, [], golden_ring.settings(**scalars), weight_codec=self.codec,
            segment=CONFIG.segment, lanes=CONFIG.lanes)
        self.master, self.weights = update.master, update.weights
        self.seen.append(self.master)


class Training(Model):
    """A ring that trains with quorum updates, and its golden model.

    Parameters
    ----------
    ring : Ring
    durations : sequence of int
    closing : Closing
    gradient : callable, optional
        Computes a gradient from a rank, the number of an update, and the weights; by default random, depending on
        seed, rank and update, plus a fraction of the weights.
    learning_rate : float
    """

    def __init__(self, ring, durations, closing, *, gradient=None, learning_rate=0.125):
        super().__init__(closing, learning_rate=learning_rate)
        self.ring = ring
        self.program = QuorumProgram(nodes=NODES, length=LENGTH, durations=durations)
        self.gradient = gradient or self.random
        self.number = 0
        ring.collectives.distribute(np.zeros(LENGTH, np.float32))
        self.program.prepare(ring, closing, scale=1.0)

    def run(self, passes):
        """Run some passes; check that the ring matches its golden model and that every gradient has exactly one
        status."""
        feeder = QuorumFeeder(
            self.ring, self.program, QuorumModel(
                rounds=self.rounds, gradient=self.gradient, closed=self.close,
                settings=lambda number: self.ring.settings.write(self.settings)),
            passes=passes, first=self.number)
        feeder.begin()
        self.ring.programs.run(collectives=1, passes=passes, parity=self.number % 2, first=self.number, traced=False,
                               on_event=feeder.on_event)
        self.number += passes
        self.compare()
        return feeder.masks

    def compare(self):
        assert (self.ring.memory.read_weights(LENGTH).view(np.uint32) == self.weights).all()
        assert (self.ring.memory.read_master(LENGTH).view(np.uint32) == self.master).all()
        for rank, (ledger, slots, counted) in enumerate(zip(
                self.rounds.ledgers, self.ring.quorum.slots(), self.ring.counters.read(), strict=True)):
            pending = self.rounds.pending(rank)
            assert ledger.balance(list(pending.values())) == (0, [0] * LENGTH)
            assert {status: counted[f"GRADIENTS_{status.upper()}"] for status in ledger.counts} == ledger.counts
            for slot, state in enumerate(slots):
                assert not state["computing"]
                assert not state["taken"]
                if state["pending"]:
                    words = self.ring.memory.read_gradients(self.program.slot(slot))[rank].view(np.uint32)
                    assert (words == pending.pop(state["tag"])).all()
            assert not pending

    @property
    def masks(self):
        return [(closed.on_time, closed.late) for closed in self.closed]


def train(durations, closing, passes, *, threads=1, latency=16, faults=None, **options):
    with rings.open_nodes(
            NODES, config=CONFIG, threads=threads, latency=latency, timeout=20000) as (ring, simulation):
        if faults:
            simulation.set_faults(RandomFaults(rate=faults, seed=5))
        ring.counters.clear()
        training = Training(ring, durations, closing, **options)
        training.run(passes)
        if faults:
            assert sum(node["WORDS_REPEATED"] for node in ring.counters.read()) > 0
        return training


def closing(factor=0.5, *, quorum=3, ages=15, deadline=0):
    return Closing(quorum=quorum, deadline=deadline, weights=stale_weights(factor, ages=ages))


@pytest.mark.parametrize(("factor", "mean"), [(1.0, 4.25), (0.5, np.float32(13 / 3.5)), (0.0, 3.0)])
def test_known_answers(factor, mean):
    """Gradients 1, 2, 3 of three nodes are on time (mean 2); the fourth node's 8 is applied one update later."""
    values = {0: (1, 2, 3, 8), 1: (3, 3, 3, 99), 2: (0, 0, 0, 99)}
    training = train((FAST, FAST, FAST, FAST + 2000), closing(factor, ages=1), 2, learning_rate=1.0,
                     gradient=lambda rank, number: np.full(LENGTH, values[number][rank], np.float32))
    first, second = (seen.view(np.float32) for seen in training.seen)
    assert training.masks == [(7, 0), (7, 8 if factor else 0)]
    assert training.rounds.ages == ({3: 1} if factor else {})
    assert (first == -2).all()
    np.testing.assert_array_equal(second, np.float32(-2) - np.float32(mean))


def test_two_stragglers():
    """Two of four nodes are late: one of them by a single update, and the other one by several updates."""
    training = train((FAST, SLOW, FAST, FAST * 2), closing(0.9, quorum=2), 9)
    late = [mask for _, mask in training.masks]
    assert any(mask & 2 for mask in late)
    assert any(mask & 8 for mask in late)
    assert all(on_time & 5 == 5 for on_time, _ in training.masks)


def test_laggard_that_returns():
    """If a late node catches up and updates wait for all nodes, its last late gradient is applied together with a
    gradient that is on time; after that, all gradients are on time."""
    with rings.open_nodes(NODES, config=CONFIG, timeout=20000) as (ring, _):
        ring.counters.clear()
        training = Training(ring, (FAST, FAST, FAST, SLOW), closing(0.5))
        training.run(6)
        training.program = dataclasses.replace(training.program, durations=(FAST,) * NODES)
        training.program.prepare(ring, closing(0.5, quorum=4), scale=1.0)
        training.run(3)
    assert all(on_time == 7 for on_time, _ in training.masks[:6])
    assert training.masks[6:] == [(15, 8), (15, 0), (15, 0)]


def test_deadline_closes_below_quorum():
    training = train((FAST, SLOW, SLOW, SLOW), closing(1.0, quorum=4, deadline=1500), 6)
    assert all(on_time == 1 for on_time, _ in training.masks)
    assert any(late == 14 for _, late in training.masks)


def test_too_late_is_dropped():
    """Gradients above the maximum age are dropped. With a factor of 0, all late gradients are dropped."""
    for rules in (closing(1.0, ages=2), closing(0.0)):
        training = train((FAST, FAST, FAST, SLOW * 2), rules, 12)
        counts = training.rounds.ledgers[3].counts
        assert counts["dropped"] >= 1
        assert counts["applied_late"] == 0
        assert all(late == 0 for _, late in training.masks)


def test_full_weight_is_the_sum_of_sparsify():
    """APPLY_LATE with a factor of 1 gives the same sum as a SPARSIFY that drops no elements."""
    generator = np.random.default_rng(1)
    fresh, late = generator.integers(0, 1 << 32, (2, 4000), dtype=np.uint32)
    kept, _ = masking.sparsify(fresh, late, 0)
    assert (golden_ring.canonical(apply_late(fresh, late, 16)) == golden_ring.canonical(kept)).all()


def test_same_bits_whatever_the_links():
    """The masks of nodes and the bits of weights are the same for any threads, link latencies and link faults."""
    durations, rules = (FAST, FAST + 300, FAST + 600, SLOW), closing(0.5)
    first = train(durations, rules, 6)
    for options in ({"threads": 2}, {"latency": 40}, {"faults": 5e-3}):
        other = train(durations, rules, 6, **options)
        assert other.masks == first.masks, options
        assert (other.master == first.master).all(), options


def test_resume_with_pending_gradients():
    """A run resumed on another ring, with its pending gradients, gives the same bits."""
    durations, rules = (FAST, FAST, FAST, SLOW), closing(0.5)
    part = train(durations, rules, 2)
    pending = [part.rounds.pending(rank) for rank in range(NODES)]
    assert list(pending[3]) == [0]
    with rings.open_nodes(NODES, config=CONFIG, timeout=20000) as (ring, _):
        ring.counters.clear()
        again = Training(ring, durations, rules)
        ring.memory.write_master(part.master.view(np.float32))
        again.master, again.number = part.master, 2
        for rank, sets in enumerate(pending):
            for tag, gradient in sets.items():
                again.rounds.ready(rank, tag, gradient)
        again.program.resume(ring, again.rounds)
        again.run(4)
    assert again.closed[0].late == 8
    replay = Model(rules)
    for closed in [*part.closed, *again.closed]:
        for rank, tag in sorted(part.rounds.computed | again.rounds.computed):
            if tag == closed.tag:
                replay.rounds.ready(rank, tag, replay.random(rank, tag))
        replay.close(closed, replay.rounds.close(closed))
    assert (replay.master == again.master).all()


def test_nobody_closes():
    """If neither a quorum nor a deadline can close an update, all nodes time out, and start again after a link
    reset."""
    with rings.open_nodes(NODES, config=CONFIG, timeout=3000) as (ring, _):
        ring.counters.clear()
        training = Training(ring, (FAST, FAST, FAST, 0), closing(0.5, quorum=4))
        ring.devices.write_register("QUORUM", 5)
        with pytest.raises(RingError) as caught:
            training.run(2)
        # COMPUTE commands of the next pass wait for a flag that the host sets when the update has closed.
        statuses = {(event.tag, event.status) for event in caught.value.events if event}
        assert statuses == {(COMPUTE, EventStatus.WAIT_TIMEOUT), (APPLY_LATE, EventStatus.CLOSE_TIMEOUT)}
        ring.recover()
        assert not any(state["pending"] for slots in ring.quorum.slots() for state in slots)
        assert [node["GRADIENTS_DROPPED"] for node in ring.counters.read()] == [1] * NODES


def test_refusals():
    refuses("Quorum must be between 1 and 16, not 0", closing, quorum=0)
    refuses("Deadline must be between 0 and 2^32 - 1 cycles, not -1", closing, deadline=-1)
    with pytest.raises(ValueError, match=r"^Weights of late gradients must be 15 numbers between 0 and 16, not "):
        Closing(quorum=1, weights=(17,) * 15)
    with pytest.raises(ValueError, match=r"^Weights of late gradients must not grow with their age, not \(0, 8, 0,"):
        Closing(quorum=1, weights=(0, 8) + (0,) * 13)
    refuses("Rounds must have between 2 and 16 nodes, not 1", QuorumProgram, nodes=1, length=32, durations=(1,))
    refuses("Durations must be one per node, 2, not 1", QuorumProgram, nodes=2, length=32, durations=(1,))


def test_closed_round_must_have_its_sets():
    rounds = QuorumRounds(nodes=2, length=1, weights=stale_weights(0.5))
    with pytest.raises(ValueError, match=r"^Node 1 must have a set of round 3 to be in time$"):
        rounds.close(Close(tag=3, on_time=2, late=0, index=16))
