"""Training by a schedule whose passes overlap (``delayed:k``): blocks of steps, checked bit for bit.

The golden model does the steps of a block first, with weights of the first k layers that lack the update of the step
before, and the nodes do them then, in one run. At the end of each block both copies of the weights, masters, state
and residuals are compared, and the words that nodes have sent in it; the version that each command has computed with
is that of the schedule.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.protocols import TrainingRing
from host.driver.words import Vector
from host.training.batches import Batch
from host.training.comparison import compare_master, compare_memories, compare_rows, names
from host.training.engine import Computer
from host.training.golden_run import words_of
from host.training.passes import OverlappingExecution, overlapping_execution_of
from host.training.record import DivergenceError, Step
from host.training.schedule import Execution
from host.training.step_checks import gradients_of, growth, most, refuse_nonfinite
from host.training.trainer import Run
from host.training.workloads import Classifier
from sim.golden.ring import Traffic

__all__ = ["OverlappingRun"]

Bits = npt.NDArray[np.uint32]


@dataclasses.dataclass
class _Golden:
    """A step of the golden model: what its nodes are given, and what they make of it."""

    batch: Batch
    shares: list[npt.NDArray[np.intp]]
    losses: list[float]
    gradients: list[Vector]
    settings: Settings | FixedSettings
    traffic: Traffic


class OverlappingRun(Run):
    """Training run whose passes overlap; parameters are those of :class:`~host.training.trainer.Run`, and one more.

    Parameters
    ----------
    every : int, optional
        Steps after each of which a block ends, so that there can be a checkpoint; a block also ends where the model
        is measured, where shares change their sizes on nodes that compute, and where traces are full.
    """

    def __init__(self, *arguments: Any, every: int | None = None, **options: Any):
        super().__init__(*arguments, **options)
        self._every = every
        self._passes = 0  # since nodes were given weights

    def _executes(self, ring: TrainingRing) -> Execution:
        self._overlapping: OverlappingExecution = overlapping_execution_of(ring, self._workload, self._config)
        return self._overlapping

    @property
    def _newest(self) -> int:
        return (self._passes + 1) % 2

    def _model(self, weights: Vector) -> None:
        super()._model(weights)
        self._older: Bits = self._reference.weights.copy()  # weights before the last update

    def _distribute(self, weights: Vector) -> None:
        super()._distribute(weights)
        self._spread()

    def _spread(self) -> None:
        """Write both copies of the weights, and count passes anew: the next one is an even one."""
        newest, older = (found.view(np.float32) for found in (self._reference.weights, self._older))
        self._overlapping.write_copies(older, newest)
        self._passes = 0

    def _copies(self) -> tuple[Bits, Bits]:
        """First and second copy of the weights, in whole vectors; only the first layers have two."""
        newest = self._reference.weights
        return (self._older, newest) if self._passes % 2 == 0 else (newest, self._older)

    def _laid_out(self) -> Bits:
        """Weights from the base on."""
        found = self._reference.weights.copy()
        found[self._apart] = self._copies()[0][self._apart]
        return found

    @property
    def _apart(self) -> slice:
        """Weights of layers with two copies."""
        return slice(0, self._overlapping.apart)

    def advance(self) -> None:
        """Do the steps of a block and, where it is due, measure the model."""
        batches = self._take()
        last = self._batches.number
        first = last - len(batches) + 1
        before = self.training.repeats
        what = f"step {last}" if first == last else f"steps {first} to {last}"
        done = self._repeat(what, lambda: self._block(first, batches))
        repeats = self.training.repeats - before
        for step, loss, count in done:
            self.training.steps.append(dataclasses.replace(step, repeats=repeats))
            self._interval_loss += loss
            self._interval_count += count
            self._on_step(self.training)
        self.due = batches[-1].due
        if self.due:
            self._note_measure(last)

    def _take(self) -> list[Batch]:
        """Batches of the next block."""
        batches: list[Batch] = []
        while len(batches) < self._overlapping.most and not self.complete:
            if batches and self._computer is not None and self._batches.size != len(batches[-1].examples):
                break
            batches.append(self._batches.take())
            if batches[-1].due or (self._every and self._batches.number % self._every == 0):
                break
        return batches

    def _block(self, first: int, batches: Sequence[Batch]) -> list[tuple[Step, float, int]]:
        """Do the steps of a block: their figures, losses and numbers of losses."""
        ring, last = self._ring, first + len(batches) - 1
        if self._computer is not None:  # the program has the numbers of examples
            self._give(np.array_split(batches[0].examples, ring.nodes), [])
        self._overlapping.load()
        golden = [self._golden(number, batch) for number, batch in enumerate(batches, first)]

        def give(number: int) -> None:
            step = golden[number]
            if self._computer is None:
                self._execution.write(step.gradients)
            else:
                assert isinstance(self._workload, Classifier)
                assert isinstance(self._computer, Computer)
                self._computer.give([self._workload.examples_of(share) for share in step.shares],
                                    odd=(self._passes + number) % 2)

        passes, timings = self._overlapping.run_block([step.settings for step in golden], first=self._passes,
                                                      give=give)
        self._passes += len(golden)
        refuse_nonfinite(last, passes.outcome, range(ring.nodes))
        self.training.timeline = self._execution.timeline
        before, counters = self._count()
        self._compare(last, golden, growth(self._reference.counter, before, counters))
        # Counters are read at the end of a block: its last step has the repairs, and each step its part of cycles.
        repairs = self._repairs(before, counters)
        figures = {**self._overlapping.engine_figures(before, counters),
                   "scatter_cycles": most("SCATTER_REDUCE_CYCLES", before, counters)}
        parts = {name: None if cycles is None else cycles // len(golden) for name, cycles in figures.items()}
        found = []
        for number, (step, timing) in enumerate(zip(golden, timings, strict=True)):
            share = {**parts, **(repairs if number == len(golden) - 1 else {})}
            traffic, count = step.traffic, self._workload.count(step.batch.examples)
            found.append((Step(
                number=first + number, epoch=step.batch.epoch, loss=sum(step.losses) / count, bound=traffic.bound,
                scatter_bound=traffic.scatter_bound, words_sent=int(traffic.words.sum()),
                words_dense=traffic.dense_words, density=traffic.density.tolist(),
                scatter_words=int(traffic.scatter_words.sum()), weight_elements=traffic.gather_elements,
                weight_words=traffic.gather_payload, nodes=ring.nodes, **timing.figures, **share),
                sum(step.losses), count))
        return found

    def _golden(self, number: int, batch: Batch) -> _Golden:
        """Do a step of the golden model; the parameters of the model are then the newest ones."""
        reference, parameters = self._reference, self._workload.parameters
        shares = np.array_split(batch.examples, self._ring.nodes)
        mixed = reference.weights.copy()
        mixed[self._apart] = self._older[self._apart]
        parameters[...] = self._form.parameters(mixed.view(np.float32))
        self._masks.number = number
        found, differences = zip(*self._workload.differentiate(shares, self._masks), strict=True)
        gradients = gradients_of(number, self._form, differences)
        settings = self._settings(number, self._workload.count(batch.examples))
        before = reference.weights
        traffic = reference.step(gradients, settings, self._execution.parts)
        self._older = before
        parameters[...] = self._form.parameters(reference.weights.view(np.float32))
        return _Golden(batch, shares, list(found), gradients, settings, traffic)

    def _compare(self, number: int, golden: Sequence[_Golden], sent: list[int]) -> None:
        """Compare nodes with the golden model at the end of a block."""
        if not self._config.check:
            return
        ring, reference = self._ring, self._reference
        compare_rows("weights", number, self._laid_out(), words_of(ring.memory.read_weights(len(reference.weights))))
        if self._apart.stop:
            second = words_of(self._overlapping.read_second())
            compare_rows("weights of the second copy", number, self._copies()[1][self._apart], second)
        compare_master(ring, reference, number)
        compare_memories(ring, reference, self._config, number)
        expected = np.sum([step.traffic.words for step in golden], axis=0).tolist()
        if sent != expected:
            raise DivergenceError(f"Step {number}: nodes have sent {names(sent)} words since step "
                                  f"{number - len(golden)}, and must have sent {names(expected)}")
        if self._computer is not None and (losses := self._computer.losses()) != golden[-1].losses:
            raise DivergenceError(f"Step {number}: nodes have computed losses of {names(losses)}, and must have "
                                  f"computed {names(golden[-1].losses)}")

    def _memory(self) -> dict[str, Any]:
        return {**super()._memory(), "older": self._older.copy()}

    def _recall(self, memory: dict[str, Any], *, nodes: bool = True) -> None:
        """Go back, or on; both copies of the weights are written in any case, since passes are counted anew."""
        self._older = memory["older"].copy()
        super()._recall(memory, nodes=nodes)
        self._spread()
