"""Training with late gradients on nodes: rounds that a quorum closes, in runs of many passes, checked bit for bit.

Compute is modelled: COMPUTE brings a gradient when an engine would have it, on a straggler so much later. Which
gradients a round has, the nodes decide, and tell in the events of FOLD; the golden model goes by these masks alone.
After every round each element that was computed is applied, folded, dropped or pending in its ledger. At the end of a
block weights and state of all nodes are compared with it, and the nodes' counts of gradients with the ledger.

``python -m host.training.late_run`` trains the digits classifier so for a number of cycles.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from host.columns import show
from host.driver.command import Event
from host.driver.ring import Ring
from host.driver.trace import TraceRecord
from host.models.digits import Dataset, digits
from host.models.layers import Array
from host.output import claim
from host.program.feeding import UPDATE, Closing, RoundFeeder, RoundModel, RoundProgram, TraceReader
from host.schema import write_report
from host.topology.grid import Kind, Part, Shape
from host.topology.switching import GridNodes
from host.training.late_learning import SCHEMA, Late, LateConfig, Model, Outcome, add_options, configs_of, table
from host.training.late_nodes import node_for, patience_of
from host.training.record import DivergenceError
from host.training.step_checks import growth
from host.transports.session import open_session
from sim.golden.rounds import Close

__all__ = ["BLOCK", "Fates", "LateRun", "main", "train"]

#: Most rounds of a block.
BLOCK = 32

_COUNTERS = ("computed", "applied", "folded", "dropped")


@dataclasses.dataclass(frozen=True)
class Fates:
    """Masks of workers in a round.

    Members
    -------
    on_time, late, dropped : int
        Workers with a gradient of the round in it, with one of an earlier round in it, and with one that was dropped.
    ages : tuple of int
        Ages in rounds of the late gradients, in the order of their workers.
    """

    on_time: int
    late: int
    dropped: int
    ages: tuple[int, ...] = ()


class LateRun:
    """A run with late gradients that is under way.

    Parameters
    ----------
    ring : Ring
        Nodes with rounds.
    block : int
        Rounds of a block; in the last one there may be fewer.
    grid : GridNodes, optional
        All nodes, in one row: a worker that stays behind is switched out.

    Members
    -------
    outcome : Outcome
        Outcome so far, with measured cycles.
    fates : list of Fates
        Fates of gradients in each round.
    laggards : list of str
        Lines about workers whose gradients were mostly dropped.
    left : dict of int to int
        Rounds after which workers were switched out.
    abandoned : list of int
        Computations of each worker that were not waited for at the end of a block.
    """

    def __init__(self, ring: Ring, data: Dataset, config: LateConfig, *, block: int = BLOCK,
                 grid: GridNodes | None = None):
        self._ring, self._config, self._block, self._grid = ring, config, block, grid
        self._model = Model(data, config, ring.devices[0].config)
        self.outcome, self.fates, self.laggards = Outcome(), list[Fates](), list[str]()
        self.left: dict[int, int] = {}
        self.abandoned = [0] * config.workers
        self._ages: dict[int, tuple[int, ...]] = {}  # of late gradients, by round
        self._span = 0  # cycles of the rounds of a block, once they have ended
        self._since = 0  # CYCLES of rank 0 at the beginning of a block
        self._begun = [0] * config.workers  # cycles of a block in which ranks were given their computations
        self._dropped: dict[int, int] = {}  # masks, by round
        self._known_dropped = [0] * config.workers
        self._cycles = 0
        self._before = [dict.fromkeys(_COUNTERS, 0) for _ in range(config.workers)]  # a process before this one

    @property
    def complete(self) -> bool:
        """Whether the cycles that are left are not enough for another round."""
        return self._fitting < 1

    @property
    def expected(self) -> int:
        """Rounds of the whole run, as far as is known."""
        return len(self.fates) + self._fitting

    @property
    def master(self) -> npt.NDArray[np.uint32]:
        """Master weights."""
        return self._model.master

    @property
    def cycles(self) -> int:
        """Cycles so far."""
        return self._cycles

    @property
    def _fitting(self) -> int:
        """Rounds that the cycles are enough for, if they take as long as those before, or as the model says."""
        durations, update = self._model.durations()
        closed = sorted(durations)[self._quorum - 1]
        if self._config.closing_deadline:
            closed = min(closed, min(durations) + self._config.closing_deadline)
        each = self._cycles / len(self.fates) if self.fates else closed + update
        return int((self._config.cycles - self._cycles) // each)

    @property
    def _quorum(self) -> int:
        """Gradients in time that close a round."""
        return min(self._config.closing, len(self._model.members))

    def begin(self, *, restored: bool = False) -> None:
        """Give the nodes weights, state, the program, the rules of rounds, and gradients that are pending, unless
        they are ``restored`` and have them."""
        model, config = self._model, self._config
        if self._grid is not None:
            gone = [Part(Kind.NODE, worker) for worker in self.left]
            plan = self._grid.grid.disable(*gone).plan(Shape.FLAT)
            self._grid.switch(plan)
            self._ring = self._grid.ring(plan)
        ring = self._ring
        self._program = RoundProgram(nodes=len(model.members), length=model.length, durations=model.durations()[0])
        self._closing = Closing(quorum=self._quorum, deadline=config.closing_deadline,
                                weights=config.weights)
        if not restored:
            ring.collectives.distribute(model.master.view(np.float32))
            ring.memory.write_state(model.state[0].view(np.float32))
            ring.counters.clear()
            self._program.prepare(ring, self._closing, scale=model.scale)
            self._program.resume(ring, model.rounds)
        self._counters = ring.counters.read()

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, between two blocks."""
        model = self._model
        pending = [model.rounds.pending(rank) for rank in range(len(model.members))]
        return {"cycles": self._cycles, "outcome": dataclasses.asdict(self.outcome), "laggards": list(self.laggards),
                "fates": [list(dataclasses.astuple(one)) for one in self.fates], "counts": self._counts_to_go_on(),
                "abandoned": list(self.abandoned), "left": [list(pair) for pair in self.left.items()],
                "master": model.master.copy(), "state": [plane.copy() for plane in model.state],
                "pending": [[[tag, gradient] for tag, gradient in sets.items()] for sets in pending]}

    def resume(self, state: dict[str, Any], *, restored: bool = False) -> None:
        """Go on from a state, in place of :meth:`begin`."""
        model = self._model
        self._cycles, self.laggards = state["cycles"], list(state["laggards"])
        self.fates = [Fates(on_time, late, dropped, tuple(ages)) for on_time, late, dropped, ages in state["fates"]]
        self.abandoned = list(state["abandoned"])
        self.outcome = Outcome(**state["outcome"])
        self.outcome.measured = [(cycle, accuracy) for cycle, accuracy in self.outcome.measured]
        model.losses = list(self.outcome.losses)
        self._before = [dict(one) for one in state["counts"]]
        self._known_dropped = [one["dropped"] for one in self._before]
        self.left = {worker: rounds for worker, rounds in state["left"]}
        if self.left:
            model.keep([worker for worker in model.members if worker not in self.left])
        model.restore(state["master"], list(state["state"]))
        for rank, sets in enumerate(state["pending"]):
            for tag, gradient in sets:
                model.rounds.ready(rank, tag, gradient)
        self.begin(restored=restored)

    def counts(self) -> list[dict[str, int]]:
        """Gradients of each worker by their fate, pending ones left out."""
        ledgers = dict(zip(self._model.members, self._model.rounds.ledgers, strict=True))
        return [{fate: before[fate] + (ledgers[worker].counts[fate] if worker in ledgers else 0)
                 for fate in _COUNTERS} for worker, before in enumerate(self._before)]

    def _counts_to_go_on(self) -> list[dict[str, int]]:
        """Counts without pending gradients, which a ring that goes on counts again as computed."""
        return [{**counted, "computed": counted["computed"] - len(pending)}
                for counted, pending in zip(self.counts(), self.pending(), strict=True)]

    def pending(self) -> list[list[int]]:
        """Rounds of each worker's gradients that have no fate yet."""
        members = self._model.members
        return [list(self._model.rounds.pending(members.index(worker))) if worker in members else []
                for worker in range(self._config.workers)]

    def advance(self) -> None:
        """Do a block of rounds, compare, and measure."""
        ring, first, passes = self._ring, len(self.fates), min(self._block, self._fitting)
        feeder = RoundFeeder(ring, self._program, RoundModel(
            rounds=self._model.rounds, gradient=self._gradient, closed=self._close, may_begin=self._may_begin,
            settings=lambda number: ring.settings.write(self._model.settings(number))), passes=passes, first=first)
        reader = TraceReader(ring)
        over = False

        def on_event(rank: int, event: Event) -> None:
            feeder.on_event(rank, event)
            reader.on_event(rank)

        def is_over() -> bool:
            nonlocal over
            if feeder.ended and not over:
                self._span = self._span or self._elapsed
                over = feeder.last < first + passes or self._abandons(feeder)
            return over

        self._since, self._span = self._clock(), 0
        feeder.begin()
        ring.programs.run(collectives=1, passes=passes, parity=first % 2, first=first, traced=False,
                          on_event=on_event, over=is_over)
        counters = self._settled(on_event) if over else ring.counters.read()
        hopeless = self._hopeless(feeder) if over else []
        self._record(reader.finish(), feeder, over=over)
        behind = self._compare(first, counters, abandoned=hopeless)
        self.outcome.losses = list(self._model.losses)
        self.outcome.measured.append((self._cycles, self._model.accuracy()))
        found = self.counts()
        self.outcome.counts = {**{fate: sum(one[fate] for one in found) for fate in _COUNTERS},
                               "pending": sum(map(len, self.pending()))}
        if not self.complete:
            self._prepare_next(behind, over=over)

    def _clock(self) -> int:
        """Cycles of rank 0."""
        return int(self._ring.devices[0].read_register("CYCLES"))

    @property
    def _elapsed(self) -> int:
        """Cycles of the block so far."""
        return (self._clock() - self._since) % (1 << 32)

    def _gradient(self, rank: int, number: int) -> Array:
        """Gradient of the member of a rank for a round, which its node computes from now on."""
        self._begun[rank] = self._elapsed
        return self._model.gradient(rank, number)

    def _may_begin(self, number: int) -> bool:
        """Whether some cycles of the run are left when the round before has ended."""
        return self._cycles + self._elapsed + self._model.durations()[1] < self._config.cycles

    def _abandons(self, feeder: RoundFeeder) -> bool:
        """Whether the end of a block does not wait for what nodes still compute.

        Nothing is waited for at the end of the run, and no computation is if its gradient would be too late for any
        weight, were rounds continued meanwhile.
        """
        total = self._cycles + self._span
        is_last = (self._config.cycles - total) * feeder.last < total
        return bool(feeder.computing) and (is_last or len(self._hopeless(feeder)) == len(feeder.computing))

    def _hopeless(self, feeder: RoundFeeder) -> list[int]:
        """Ranks that compute gradients which would be too late for any weight if rounds continued meanwhile."""
        elapsed, durations = self._elapsed, self._model.durations()[0]
        each = self._span // (feeder.last - len(self.fates))
        return [rank for rank, number in feeder.computing.items()
                if feeder.last - number + max(0, self._begun[rank] + durations[rank] - elapsed) // each
                > self._config.oldest]

    def _settled(self, on_event: Callable[[int, Event], None]) -> list[dict[str, int]]:
        """Take all events that are there; counters of nodes, which no command has changed since."""
        while True:
            counters = self._ring.counters.read()
            events = [(rank, event) for rank, device in enumerate(self._ring.devices)
                      if (event := device.pop_event(0)) is not None]
            if not events:
                return counters
            for rank, event in events:
                on_event(rank, event)

    def _record(self, traces: list[list[TraceRecord]], feeder: RoundFeeder, *, over: bool) -> None:
        """Take note of the cycles and fates of a block."""
        first = len(self.fates)
        times = np.array([[record.time for record in trace if record.end and record.tag == UPDATE]
                          for trace in traces]).max(axis=0)
        # A gradient that is too late for any round is dropped when its computation ends, maybe after the last round.
        self._dropped[feeder.last - 1] |= self._newly_dropped()
        begun = min(record.time for trace in traces for record in trace)
        self.outcome.cycles += [self._cycles + int(time - begun) for time in times]
        # The next block begins when all nodes have ended this one, stragglers too, unless they are not waited for.
        end = int(times[-1]) if over else max(record.time for trace in traces for record in trace)
        self._cycles += end - begun
        self.fates += [Fates(self._workers(feeder.masks[number] & 0xFFFF), self._workers(feeder.masks[number] >> 16),
                             self._dropped.pop(number), self._ages.pop(number))
                       for number in range(first, feeder.last)]
        for rank in feeder.computing if over else ():
            self.abandoned[self._model.members[rank]] += 1

    def _prepare_next(self, behind: Sequence[int], *, over: bool) -> None:
        """Prepare the next block: without workers that are never in time, and with all nodes idle."""
        if over:
            self._ring.recover()
        left = bool(behind) and self._grid is not None and self._switch_out(behind)
        if over and not left:
            self._begin_again(self._model.members, self._counts_to_go_on())

    def _begin_again(self, members: Sequence[int], counts: list[dict[str, int]]) -> None:
        """Begin again with some members, and with what they have pending; counts are of all workers so far."""
        self._before = counts
        self._known_dropped = [one["dropped"] for one in counts]
        self._model.keep(members)
        self.begin()

    def _workers(self, ranks: int) -> int:
        """Mask of workers by that of their ranks."""
        return sum((ranks >> rank & 1) << worker for rank, worker in enumerate(self._model.members))

    def _switch_out(self, workers: Sequence[int]) -> bool:
        """Continue in a ring without some workers, and drop their pending gradients; False if no ring is left."""
        members = [worker for worker in self._model.members if worker not in workers]
        if len(members) < 2:
            self.laggards.append(f"rounds from {len(self.fates)} on: no ring would be left without workers "
                                 f"{', '.join(map(str, workers))}, so they stay")
            return False
        counts, pending = self._counts_to_go_on(), self.pending()
        for worker in workers:
            counts[worker]["computed"] += len(pending[worker])
            counts[worker]["dropped"] += len(pending[worker])
            self.left[worker] = len(self.fates)
        self._begin_again(members, counts)
        return True

    def _close(self, closed: Close, contributions: list[npt.NDArray[np.uint32]]) -> None:
        """Update the golden model by a round, and check its ledger."""
        rounds = self._model.rounds
        self._ages[closed.tag] = tuple(rounds.ages[rank] for rank in sorted(rounds.ages))
        self._model.update(closed, contributions)
        for rank, ledger in enumerate(rounds.ledgers):
            left, elements = ledger.balance(list(rounds.pending(rank).values()))
            if left or any(elements):
                raise DivergenceError(f"Round {closed.tag}: {left} gradients of node {rank}, and "
                                      f"{np.count_nonzero(elements)} elements, have no fate")
        self._dropped[closed.tag] = self._newly_dropped()

    def _newly_dropped(self) -> int:
        """Mask of workers of which a gradient was dropped since this was called last."""
        dropped = [one["dropped"] for one in self.counts()]
        found = sum((now > was) << rank for rank, (now, was) in enumerate(
            zip(dropped, self._known_dropped, strict=True)))
        self._known_dropped = dropped
        return found

    def _compare(self, first: int, counters: list[dict[str, int]], *, abandoned: Sequence[int]) -> list[int]:
        """Compare nodes with the golden model, and their counts with the ledger; returns workers that stay behind.

        No computation of the ranks in ``abandoned`` has ended in this block.
        """
        ring, model, number = self._ring, self._model, len(self.fates)
        found = {"weights": (ring.memory.read_weights(model.length), model.weights),
                 "momenta": (ring.memory.read_state(model.length), model.state[0])}
        if ring.formats.has_master:
            found["masters"] = ring.memory.read_master(model.length), model.master
        for name, (there, here) in found.items():
            if not (there.view(np.uint32) == here).all():
                raise DivergenceError(f"Round {number}: {name} of nodes differ from the golden model")
        before, self._counters = self._counters, counters
        dropped = growth("GRADIENTS_DROPPED", before, self._counters)
        behind = []
        for rank, (ledger, counted) in enumerate(zip(model.rounds.ledgers, self._counters, strict=True)):
            counts = {fate: counted[f"GRADIENTS_{fate.upper()}"] for fate in _COUNTERS}
            if counts != ledger.counts:
                raise DivergenceError(f"Round {number}: node {rank} has counted {counts} gradients, and must have "
                                      f"counted {ledger.counts}")
            worker = model.members[rank]
            on_time = sum(one.on_time >> worker & 1 for one in self.fates[first:])
            if (dropped[rank] or rank in abandoned) and not on_time and self._config.late is not Late.WAIT:
                behind.append(worker)
                advice = "" if self._grid else (
                    ": fold them, wait longer (a larger quorum or deadline), or switch it out (--switch-out)")
                what = f"{dropped[rank]} of its gradients were dropped" if dropped[rank] else (
                    "its computation was abandoned")
                self.laggards.append(f"rounds {first} to {number - 1}: worker {worker} was never in time, and "
                                     f"{what}{advice}")
        return behind


def train(data: Dataset, config: LateConfig) -> LateRun:
    """Train on simulated nodes; the run, at its end."""
    node = node_for(Model(data, config).length, nodes=config.workers)
    with open_session(node, nodes=config.workers, host_port=False, threads=1,
                      timeout=patience_of(data, config)) as session:
        run = LateRun(session.ring, data, config)
        run.begin()
        while not run.complete:
            run.advance()
    return run


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m host.training.late_run", description=__doc__.split("\n", 1)[0])
    add_options(parser, seeds=1)
    parser.add_argument("--output", type=Path, default=Path("build/late-run"), help="folder of late.json")
    options = parser.parse_args(arguments)
    claim(options.output, files=("late.json",))
    data = digits()
    results: dict[tuple[float, Late], list[Outcome]] = {}
    runs: list[dict[str, Any]] = []
    for config in configs_of(options):
        run = train(data, config)
        outcome = run.outcome
        results.setdefault((config.skew, config.late), []).append(outcome)
        runs.append({"skew": config.skew, "late": config.late.value, "seed": config.seed,
                     "masks": [(one.on_time, one.late) for one in run.fates], **dataclasses.asdict(outcome)})
        ledger = ", ".join(f"{count} {fate}" for fate, count in outcome.counts.items())
        print(f"{config.late.value}, skew {config.skew:g}, seed {config.seed}: {len(run.fates)} rounds, "
              f"{outcome.measured[-1][0]:,} cycles, accuracy {outcome.accuracy:.2%}; gradients: {ledger}; all nodes "
              f"equal to golden", flush=True)
        print("\n".join(run.laggards), end="\n" if run.laggards else "")
    show(table(results))
    print("compute: modelled; rounds, sums and updates: gateware")
    write_report(SCHEMA.report({"compute": "modelled", "runs": runs}), options.output, "late.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
