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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import NodeConfig
from host.driver.command import Event
from host.driver.ring import Ring
from host.models.digits import Dataset, digits
from host.output import write_json
from host.program.feeding import TraceReader
from host.program.rounds import UPDATE, Closing, RoundFeeder, RoundProgram
from host.training.late_learning import Late, LateConfig, Model, Outcome, add_options, configs_of, table
from host.training.record import DivergenceError
from host.training.step_checks import growth
from host.transports.session import open_session
from sim.golden.rounds import Close

__all__ = ["LateRun", "main", "node_for"]

#: Most rounds of a block.
BLOCK = 32


_COUNTERS = ("computed", "applied", "folded", "dropped")


class LateRun:
    """A run with late gradients that is under way.

    Parameters
    ----------
    ring : Ring
        Nodes with rounds.
    data : Dataset
    config : LateConfig

    Members
    -------
    outcome : Outcome
        Outcome so far, with measured cycles.
    masks : list of (int, int)
        Nodes in time, and nodes that were late, of each round.
    laggards : list of str
        Lines about workers whose gradients were mostly dropped.
    """

    def __init__(self, ring: Ring, data: Dataset, config: LateConfig):
        self._ring, self._config = ring, config
        self._model = Model(data, config)
        self._program = RoundProgram(nodes=config.workers, length=self._model.length,
                                     durations=self._model.durations()[0])
        self._closing = Closing(quorum=config.closing, deadline=config.deadline, weights=config.weights)
        self.outcome, self.masks, self.laggards = Outcome(), list[tuple[int, int]](), list[str]()
        self._cycles = 0

    @property
    def complete(self) -> bool:
        """Whether the cycles that are left are not enough for another round."""
        return self._fitting < 1

    @property
    def _fitting(self) -> int:
        """Rounds that the cycles are enough for, if they take as long as those before, or as the model says."""
        durations, update = self._model.durations()
        each = (self._cycles / len(self.masks) if self.masks else
                sorted(durations)[self._closing.quorum - 1] + update)
        return int((self._config.cycles - self._cycles) // each)

    def begin(self) -> None:
        """Give the nodes the first weights, the program, and the rules of rounds."""
        self._ring.distribute(self._model.weights.view(np.float32))
        self._ring.clear_state(self._model.length)
        self._ring.clear_counters()
        self._program.prepare(self._ring, self._closing, scale=self._model.scale)
        self._counters = self._ring.counters()

    def advance(self) -> None:
        """Do a block of rounds, compare, and measure."""
        ring, first, passes = self._ring, len(self.masks), min(BLOCK, self._fitting)
        feeder = RoundFeeder(
            ring, self._program, passes=passes, first=first, rounds=self._model.rounds, gradient=self._model.gradient,
            closed=self._close, settings=lambda number: ring.write_settings(self._model.settings(number)))
        reader = TraceReader(ring)

        def on_event(rank: int, event: Event) -> None:
            feeder.on_event(rank, event)
            reader.on_event(rank)

        feeder.begin()
        ring.run_programs(collectives=1, passes=passes, parity=first % 2, first=first, traced=False,
                          on_event=on_event)
        traces = reader.finish()
        times = np.array([[record.time for record in trace if record.end and record.tag == UPDATE]
                          for trace in traces]).max(axis=0)
        begun = min(record.time for trace in traces for record in trace)
        self.outcome.cycles += [self._cycles + int(time - begun) for time in times]
        # The next block begins when all nodes have ended this one, stragglers too.
        self._cycles += int(max(record.time for trace in traces for record in trace) - begun)
        self.masks += [(feeder.masks[number] & 0xFFFF, feeder.masks[number] >> 16)
                       for number in range(first, first + passes)]
        self._compare(first)
        self.outcome.losses = self._model.losses
        self.outcome.measured.append((self._cycles, self._model.accuracy()))
        self.outcome.counts = self._model.counts()

    def _close(self, closed: Close, contributions: list[npt.NDArray[np.uint32]]) -> None:
        """Update the golden model by a round, and check its ledger."""
        self._model.update(closed, contributions)
        rounds = self._model.rounds
        for rank, ledger in enumerate(rounds.ledgers):
            left, elements = ledger.balance(list(rounds.pending(rank).values()))
            if left or any(elements):
                raise DivergenceError(f"Round {closed.tag}: {left} gradients of node {rank}, and "
                                      f"{np.count_nonzero(elements)} elements, have no fate")

    def _compare(self, first: int) -> None:
        """Compare nodes with the golden model, and their counts with the ledger."""
        ring, model, number = self._ring, self._model, len(self.masks)
        if not (ring.read_weights(model.length).view(np.uint32) == model.weights).all():
            raise DivergenceError(f"Round {number}: weights of nodes differ from the golden model")
        if not (ring.read_state(model.length).view(np.uint32) == model.state[0]).all():
            raise DivergenceError(f"Round {number}: momenta of nodes differ from the golden model")
        before, self._counters = self._counters, ring.counters()
        dropped = growth("GRADIENTS_DROPPED", before, self._counters)
        for rank, (ledger, counted) in enumerate(zip(model.rounds.ledgers, self._counters, strict=True)):
            found = {fate: counted[f"GRADIENTS_{fate.upper()}"] for fate in _COUNTERS}
            if found != ledger.counts:
                raise DivergenceError(f"Round {number}: node {rank} has counted {found} gradients, and must have "
                                      f"counted {ledger.counts}")
            on_time = sum(masks >> rank & 1 for masks, _ in self.masks[first:])
            if dropped[rank] and not on_time and self._config.late is not Late.WAIT:
                self.laggards.append(f"rounds {first} to {number - 1}: worker {rank} was never in time, and "
                                     f"{dropped[rank]} of its gradients were dropped: fold them (--factor), wait "
                                     f"longer (--deadline, --quorum), or train without it")


def node_for(length: int) -> NodeConfig:
    """A node with rounds for vectors of a length."""
    words = 1 << (4 * length - 1).bit_length()
    return NodeConfig(queues=2, replay=True, rounds=True, stand_in=True, state_planes=1, masking=False,
                      error_feedback=False, gradient_words=words)


def train(data: Dataset, config: LateConfig) -> tuple[Outcome, list[tuple[int, int]], list[str]]:
    """Train on simulated nodes; the outcome, masks of all rounds, and lines about laggards."""
    longest = max(Model(data, config).durations()[0])
    with open_session(node_for(Model(data, config).length), nodes=config.workers, host_port=False, threads=1,
                      timeout=4000 + 2 * longest) as session:
        run = LateRun(session.ring, data, config)
        run.begin()
        while not run.complete:
            run.advance()
    return run.outcome, run.masks, run.laggards


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m host.training.late_run", description=__doc__.split("\n", 1)[0])
    add_options(parser, seeds=1)
    parser.add_argument("--output", type=Path, default=Path("build/late-run"), help="folder of late.json")
    options = parser.parse_args(arguments)
    data = digits()
    results: dict[tuple[float, Late], list[Outcome]] = {}
    runs: list[dict[str, Any]] = []
    for config in configs_of(options):
        outcome, masks, laggards = train(data, config)
        results.setdefault((config.skew, config.late), []).append(outcome)
        runs.append({"skew": config.skew, "late": config.late.value, "seed": config.seed, "masks": masks,
                     **dataclasses.asdict(outcome)})
        ledger = ", ".join(f"{count} {fate}" for fate, count in outcome.counts.items())
        print(f"{config.late.value}, skew {config.skew:g}, seed {config.seed}: {len(masks)} rounds, "
              f"{outcome.measured[-1][0]:,} cycles, accuracy {outcome.accuracy:.2%}; gradients: {ledger}; all nodes "
              f"equal to golden", flush=True)
        print("\n".join(laggards), end="\n" if laggards else "")
    print(table(results))
    print("compute: modelled; rounds, sums and updates: gateware")
    write_json(options.output / "late.json", {"compute": "modelled", "runs": runs})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
