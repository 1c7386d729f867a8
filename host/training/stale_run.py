"""Training by a stale schedule: several passes in a run, the next of which begins before the one before has ended.

The golden model goes ahead: it does all steps of a block, the first layers with weights that are an update behind,
and so has the gradients of each before the nodes begin. Then these do the whole block in one run, in which the host
gives each pass what it needs (:mod:`host.program.feeding`). At the end of a block both copies of weights, masters,
words on the links, losses that nodes have computed, and the versions of weights that each command has found are
compared with the golden model. A block that the ring could not do is done again from its beginning.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from host.driver.buffers import Buffer
from host.driver.local_commands import LocalCommands
from host.driver.optimizer_settings import Rule, Settings
from host.driver.ring import Ring
from host.driver.trace import TraceRecord
from host.driver.vectors import Vector
from host.program.program import CompiledProgram, Queue, Task
from host.program.schedules import Schedule
from host.training.batches import Batch
from host.training.comparison import compare_copies, compare_memories, names
from host.training.record import DivergenceError, Step, Training, TrainingConfig
from host.training.rings import Rings
from host.training.schedule import StaleExecution, timings_of
from host.training.step_checks import gradients_of, growth, refuse_nonfinite
from host.training.trainer import Run
from host.training.workloads import Classifier, Workload

if TYPE_CHECKING:
    from sim.golden.ring import Traffic

__all__ = ["StaleRun", "run_of"]

#: Most steps of a block, and passes that a timeline shows.
BLOCK, SHOWN = 16, 3

#: Passes after which nodes begin to count them anew, of 2^16 that they can count.
_COUNTED = 1 << 15

#: Numbers of versions in a record of a trace.
_VERSIONS = 1 << 13


class StaleRun(Run):
    """A training run by a stale schedule that is under way.

    Parameters are those of :class:`~host.training.trainer.Run`, which has steps done one after the other.
    """

    _execution: StaleExecution

    def _bind(self, ring: LocalCommands) -> None:
        super()._bind(ring)
        self._base = self._batches.number  # steps before the nodes were given their weights

    @property
    def _passed(self) -> int:
        """Passes since the nodes were given their weights."""
        return self._batches.number - self._base

    def _model(self, weights: Vector) -> None:
        super()._model(weights)
        self._older = self._reference.weights.copy()

    def _distribute(self, weights: Vector) -> None:
        super()._distribute(weights)
        self._place()

    def _place(self) -> None:
        """Give nodes both copies of the weights, so that the next pass is their first one."""
        weights, apart = self._reference.weights, self._execution.apart
        self._ring.write_weights(self._next())
        if apart:
            self._ring.write_weights(weights[:apart], Buffer("weights", self._execution.distance, apart))
        self._ring.write_weight_stride(self._execution.distance)
        self._base = self._batches.number
        self._turn()

    def _turn(self) -> None:
        """Have the test set classified with the newest copy of the weights: that of the last pass."""
        if self._computer is not None:
            self._computer.odd = (self._passed - 1) % 2 if self._execution.apart else 0

    def _next(self) -> npt.NDArray[np.uint32]:
        """Weights that the next pass computes with."""
        apart = self._execution.apart
        return np.concatenate([self._older[:apart], self._reference.weights[apart:]])

    def advance(self) -> None:
        """Do a block of steps and, where it is due, measure the model."""
        before = self._batches.state()
        block, training = self._block(), self.training
        after, repeats, first = self._batches.state(), training.repeats, before["number"] + 1
        last = first + len(block) - 1

        def action() -> list[Step]:
            self._batches.restore(before)
            if self._passed + len(block) > _COUNTED:
                self._place()
            return self._do(block)

        steps = self._repeat(f"block of steps {first} to {last}", action)
        self._batches.restore(after)
        self._turn()
        self.advanced = len(block)
        steps[-1] = dataclasses.replace(steps[-1], repeats=training.repeats - repeats)
        for step, batch in zip(steps, block, strict=True):
            count = self._workload.count(batch.examples)
            training.steps.append(step)
            self._interval_loss += step.loss * count
            self._interval_count += count
            self.due = batch.due
            self._on_step(training)
        self._conclude(last)

    def _block(self) -> list[Batch]:
        """Batches of the next block: up to a measurement or a new codebook, and of nodes that compute with as many
        examples each."""
        batches, block = self._batches, [self._batches.take()]
        while len(block) < BLOCK and not block[-1].due:
            if self._codebooks.centroids is not None and batches.number % self._config.refresh == 0:
                break
            state = batches.state()
            batch = batches.take()
            if self._computer is not None and len(batch.examples) != len(block[0].examples):
                batches.restore(state)
                break
            block.append(batch)
        return block

    def _do(self, block: list[Batch]) -> list[Step]:
        """Do the steps of a block on the golden model, then on the nodes; figures of each."""
        ring, config, first = cast(Ring, self._ring), self._config, self._batches.number + 1
        passed = self._passed
        program = self._execution.load([len(share) for share in np.array_split(block[0].examples, ring.nodes)])
        ahead = [self._ahead(first + place, batch) for place, batch in enumerate(block)]

        def give(place: int) -> None:
            if self._computer is None:
                self._execution.write(ahead[place].gradients)
            else:
                assert isinstance(self._workload, Classifier)
                self._computer.give([self._workload.examples_of(share) for share in ahead[place].shares],
                                    odd=(passed + place) % 2)

        before = self._counters
        found = self._execution.run(program, [one.settings for one in ahead], first=passed, give=give)
        last = first + len(block) - 1
        refuse_nonfinite(last, found.outcome, range(ring.nodes))
        _, after = self._count()
        if config.check:
            self._compare(last, ahead, before, after)
            self._check_versions(first, passed, program, found.traces)
        timings = timings_of(str(config.overlap), program, found.traces)
        spans = [span for one in timings[-SHOWN:] for span in one.spans]
        begun = min(span.start for span in spans)
        self.training.timeline = [list(dataclasses.astuple(dataclasses.replace(
            span, start=span.start - begun, end=span.end - begun))) for span in spans]

        def parts(name: str, of: Callable[[list[int]], int] = max) -> list[int]:
            """Growth of a counter in the block, which is split evenly among its steps."""
            return _split(of(growth(name, before, after)), len(block))

        computed = {} if self._computer is None else {
            "gemm_cycles": parts("GEMM_CYCLES"), "vector_cycles": parts("VECTOR_CYCLES")}
        scatter, repairs = parts("SCATTER_REDUCE_CYCLES"), self._repairs(before, after)
        return [Step(
            number=first + place, epoch=batch.epoch, loss=sum(one.losses) / self._workload.count(batch.examples),
            cycles=timing.cycles, bound=one.traffic.bound, scatter_cycles=scatter[place],
            scatter_bound=one.traffic.scatter_bound, words_sent=int(one.traffic.words.sum()),
            words_dense=one.traffic.dense_words, density=one.traffic.density.tolist(),
            scatter_words=int(one.traffic.scatter_words.sum()), weight_elements=one.traffic.gather_elements,
            weight_words=one.traffic.gather_payload, codebook_words=one.codebook_words, nodes=ring.nodes,
            schedule=timing.schedule, modelled_cycles=timing.modelled, compute_cycles=timing.compute,
            communicate_cycles=timing.communicate, **{name: values[place] for name, values in computed.items()},
            **(repairs if place == len(block) - 1 else {}))
            for place, (batch, one, timing) in enumerate(zip(block, ahead, timings, strict=True))]

    def _ahead(self, number: int, batch: Batch) -> "_Ahead":
        """Do a step on the golden model."""
        reference, config = self._reference, self._config
        codebook_words = self._codebooks.refresh(number, reference)
        shares = np.array_split(batch.examples, self._ring.nodes)
        self._workload.parameters[...] = self._form.parameters(self._next().view(np.float32))
        losses, differences = zip(*self._workload.differentiate(shares, self._masks), strict=True)
        gradients = gradients_of(number, self._form, differences)
        settings = self._form.settings(
            config.optimizer, number, count=self._workload.count(batch.examples), packed_state=False,
            learning_rate=config.optimizer.learning_rate * (1 - (number - 1) / self._batches.total))
        assert isinstance(settings, Settings)
        older = reference.weights
        traffic = reference.step(gradients, settings, self._execution.parts)
        self._older = older
        self._workload.parameters[...] = self._form.parameters(reference.weights.view(np.float32))
        return _Ahead(shares=shares, losses=list(losses), gradients=gradients, settings=settings, traffic=traffic,
                      codebook_words=codebook_words)

    def _compare(self, last: int, ahead: Sequence["_Ahead"], before: list[dict[str, int]],
                 after: list[dict[str, int]]) -> None:
        """Compare what nodes have after a block, and have sent in it, with the golden model."""
        self._compare_copies(last, self._passed + len(ahead))
        sent = growth(self._reference.counter, before, after)
        expected = np.sum([one.traffic.words for one in ahead], axis=0).tolist()
        if sent != expected:
            raise DivergenceError(f"Steps {last - len(ahead) + 1} to {last}: nodes have sent {names(sent)} words, "
                                  f"and must have sent {names(expected)}")
        if self._computer is not None:
            self._losses(last, ahead[-1].losses)  # those of passes that overlap lie in one place

    def _compare_copies(self, number: int, passed: int) -> None:
        compare_copies(self._ring, self._reference, number, older=self._older, apart=self._execution.apart,
                       distance=self._execution.distance, newest=(passed - 1) % 2 if self._execution.apart else 0)
        compare_memories(self._ring, self._reference, self._config, number)

    def _check_versions(self, first: int, passed: int, program: CompiledProgram,
                        traces: Sequence[Sequence[TraceRecord]]) -> None:
        """Check that every command that computes has found the version of its weights that the schedule says."""
        tasks = {task.place: task for task in program.tasks if task.queue == Queue.COMPUTE}
        behind = Schedule.parse(str(self._config.overlap)).behind
        for rank, trace in enumerate(traces):
            passes = dict.fromkeys(tasks, 0)
            for record in trace:
                task = tasks.get(record.tag)
                if task is None or record.end:
                    continue
                place, passes[record.tag] = passes[record.tag], passes[record.tag] + 1
                lag = int(_layer(task) <= behind)
                expected = max(0, passed + place - lag) % _VERSIONS
                if record.version != expected:
                    raise DivergenceError(
                        f"Step {first + place}: node {rank} has computed {task.name} with weights that have had "
                        f"{record.version} updates, and must have had {expected}")

    def finish(self) -> Training:
        """Compare the memories of the nodes with the golden model."""
        if self._config.check:
            self._compare_copies(self._batches.number, self._passed)
            self.training.bit_exact = True
        return self.training

    def _memory(self) -> dict[str, Any]:
        return {**super()._memory(), "older": self._older.copy()}

    def _recall(self, memory: dict[str, Any]) -> None:
        self._older = memory["older"].copy()
        super()._recall(memory)
        self._workload.parameters[...] = self._form.parameters(self._reference.weights.view(np.float32))
        self._place()

    def _warm_up(self, settings: dict[str, int | float]) -> None:
        """Have nodes do two passes that change no weights."""
        ring, zeros = self._ring, Settings(rule=Rule.SGD, gradient_scale=0.0, learning_rate=0.0)
        shares = np.array_split(np.arange(self._config.largest(self._workload.examples)), ring.nodes)
        gradients = [self._form.weights(self._workload.parameters)] * ring.nodes
        self._prepare()
        self._place()
        program = self._execution.load([len(share) for share in shares])
        self._execution.run(program, [zeros] * 2, first=0, give=lambda number: self._give(shares, gradients))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Ahead:
    """A step that the golden model has done: what nodes are given, and what they must have sent."""

    shares: list[npt.NDArray[np.intp]]
    losses: list[float]
    gradients: list[Vector]
    settings: Settings
    traffic: "Traffic"
    codebook_words: int


def _layer(task: Task) -> int:
    """Number of the layer of a command that computes."""
    return int(task.name.split(" ")[1])


def _split(total: int, count: int) -> list[int]:
    """Whole parts of a number, of sizes as equal as possible."""
    return [total // count + int(place < total % count) for place in range(count)]


def run_of(ring: Ring | Rings, workload: Workload, config: TrainingConfig, **given: Any) -> Run:
    """A run by the configuration's schedule; parameters are those of :class:`~host.training.trainer.Run`."""
    return (StaleRun if config.stale else Run)(ring, workload, config, **given)
