"""Steps that sum gradients and update weights on the nodes, verified bit for bit.

In each step, a batch is split into one share per node. The host computes the gradients of every share in float32 and
writes them to the nodes, or writes inputs and labels to computing nodes. The ring sums the gradients, the owner of
each block updates it, and the new weights are copied to all nodes. Then the weights of all nodes are compared bit by
bit with each other and with the golden model; the number of words that each node has sent is also checked. With a
weight codec, new weights are encoded for transfer, gradients are computed with decoded weights, and the owners'
master weights are also compared; a codebook is computed from the initial weights, and then from the master weights at
intervals. With a lossy gradient codec, residuals are compared at the end of the run.

Nodes also apply the masks of the workload, and all masked elements are compared. With a density, nodes send only the
largest elements of their gradients, and add the rest to the next gradients.

A step that fails because a word was damaged or lost on a link is repeated from the beginning.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hdl.config import Configuration
from host.driver.diagnosis import RingError
from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.protocols import TrainingRing
from host.driver.ring_memory import RingMemory
from host.driver.words import Vector
from host.feature import feature, features_of
from host.models.layers import Array
from host.training import comparison
from host.training.batches import Batch, counts_of, waves_of
from host.training.executions import Execution, execution_of
from host.training.executor import Executor
from host.training.number_format import elements_of
from host.training.record import DivergenceError, Step, Training, TrainingConfig
from host.training.reference import Codebooks, Reference, reference_of
from host.training.sparsifier import Sparsifier, check_zeros
from host.training.stages import RingStages
from host.training.workloads import Classifier, Workload

__all__ = ["REPEATS", "UpdateExecutor", "check_run", "repeat", "write_nodes"]


T = TypeVar("T")


class UpdateExecutor(Executor[Step]):
    """Executor of steps that sum gradients and update weights, on one ring or on a sequence of rings.

    ``on_repeat`` is called with a line that names the repeated operation and the reason; ``faults`` returns the total
    number of faults injected into the links.
    """

    def __init__(self, ring: TrainingRing | RingStages, workload: Workload, config: TrainingConfig, *,
                 on_repeat: Callable[[str], None] = lambda line: None, faults: Callable[[], int] = lambda: 0):
        self._rings = ring if isinstance(ring, RingStages) else None
        self._workload, self._config, self._on_repeat = workload, config, on_repeat
        self._faults, self._injected = faults, faults()
        self._length = workload.parameters.size
        self._number, self._total = 0, config.steps(workload.examples)
        first = ring.ring if isinstance(ring, RingStages) else ring
        self._form = elements_of(first, config.optimizer, config.largest(workload.examples))
        self._bind(first)
        # Without a golden model, only the nodes contain the state needed to repeat a step.
        self._blind = self._computer is not None and not config.check
        #: Results of the run so far.
        self.training = Training(nodes=first.nodes, parameters=self._length)
        self._interval_loss, self._interval_count = 0.0, 0

    def _bind(self, ring: TrainingRing) -> None:
        """Use the nodes of a ring for the next steps."""
        config = self._config
        self._ring = ring
        ring.memory.require(config.allocation(self._length))
        self._codebooks = Codebooks(ring, config.refresh)
        self._execution = (self._executes(ring) if self._rings is None or self._rings.flat
                           else Execution(ring, self._length))
        self._computer = self._execution.computer

    def _executes(self, ring: TrainingRing) -> Execution:
        """Create the object that executes steps on the nodes."""
        return execution_of(ring, self._workload, self._config)

    def begin(self) -> None:
        parameters, config = self._workload.parameters, self._config
        self._workload.initialize(config.seed)
        if self._ring.formats.has_codebook:
            self._codebooks.load(parameters)
        first = self._form.weights(parameters)
        self._model(first)
        self._repeat("distribution of the first weights", lambda: self._distribute(first))
        self._prepare()
        self._ring.counters.clear()
        self._counters = self._ring.counters.read()

    def _prepare(self) -> None:
        """Write the instruction lists of computing nodes."""
        if self._computer is not None:
            self._computer.prepare()

    def _model(self, weights: Vector) -> None:
        """Create the golden model, and the masks and sparsifier that use it."""
        ring, config = self._ring, self._config
        self._reference: Reference = reference_of(
            ring, None if self._rings is None else self._rings.plan, weights, config.optimizer.planes,
            self._codebooks.centroids)
        if config.microbatches is not None:
            self._reference.counts = counts_of(config.microbatches, ring.nodes)
        self._masks = comparison.Masks(ring.local, self._reference, config)
        self._sparsify = Sparsifier(ring, self._reference, self._form, config, self._total)

    def _distribute(self, weights: Vector) -> None:
        ring, config = self._ring, self._config
        ring.collectives.distribute(weights)  # distribution also sets residuals to zero
        if self._reference.has_master or not self._form.exact:
            self._fetch(0)
        if config.optimizer.planes:
            ring.memory.clear_state(self._length, packed_state=config.packed_state)
        if config.density is not None:
            ring.memory.clear_errors(self._length)

    def prepare(self, number: int) -> None:
        """Enter a new stage of the rings if the next step requires it."""
        if self._rings is not None and self._rings.due(number):
            self._change(self._rings)

    def execute(self, first: int, batches: Sequence[Batch]) -> list[Step]:
        last = self._number = first + len(batches) - 1
        what = f"step {last}" if first == last else f"steps {first} to {last}"
        before = self.training.repeats
        done = self._repeat(what, lambda: self._block(first, batches))
        for _, loss, count in done:
            self._interval_loss += loss
            self._interval_count += count
        repeats = self.training.repeats - before
        return [dataclasses.replace(step, repeats=repeats) for step, _, _ in done]

    def _block(self, first: int, batches: Sequence[Batch]) -> list[tuple[Step, float, int]]:
        """Execute the steps of a block; return each step's figures, loss sum and number of losses."""
        return [self._step(number, batch) for number, batch in enumerate(batches, first)]

    def record(self, step: Step) -> None:
        self.training.steps.append(step)

    def _change(self, rings: RingStages) -> None:
        """Continue on new rings after handing over the state of the nodes and the golden model."""
        number, memory, old = self._number, self._memory(), rings.plan
        change = rings.move(number, self._length, self._config)
        self._bind(rings.ring)
        self._codebooks.move(memory["codebooks"])
        self._model(self._form.weights(self._workload.parameters))
        self._reference.restore(rings.handed_over(memory["reference"], old))
        self._masks.restore(memory["masks"])
        self._sparsify.succeed(memory["sparsify"])
        self._execution.restore(memory["execution"])
        if self._config.check:
            for compare in (comparison.read_weights, comparison.compare_memories):
                compare(self._ring, self._reference, self._config, number)
        self._counters = self._ring.counters.read()
        self.training.changes.append(change)

    def measure(self, number: int) -> None:
        measure = self._repeat(f"measurement after step {number}", lambda: self._counted(self._measure))
        self.training.losses.append(self._interval_loss / self._interval_count)
        self.training.measures.append(measure)
        self.training.measured.append(number)
        self._interval_loss, self._interval_count = 0.0, 0

    def _measure(self) -> float:
        """Measure the model; for a perceptron, computing nodes compute the scores."""
        workload = self._workload
        if self._computer is not None and self._computer.has_scores and isinstance(workload, Classifier):
            scores = self._computer.scores(workload.test_x, odd=self._newest)
            if self._config.check:
                comparison.compare_scores(self._number, workload.scores(), scores)
            return workload.rate(scores)
        if self._blind:
            self._fetch(self._number)
        return workload.measure(self._ring.nodes, self._masks, last=self._number == self._total)

    def _step(self, number: int, batch: Batch) -> tuple[Step, float, int]:
        """Execute a step; return its figures, its loss sum, and the number of losses in the sum."""
        ring, config, reference, masks = self._ring, self._config, self._reference, self._masks
        masks.number = number
        shares = np.array_split(batch.examples, self._gradients)
        cycles, replaced, elements = masks.cycles, masks.replaced, masks.elements
        codebook_words = self._codebooks.refresh(number, reference)
        count = self._workload.count(batch.examples)
        losses, gradients = [], []
        if not self._blind:
            sums, differences = zip(*self._differentiate(shares), strict=True)
            losses, gradients = list(sums), comparison.gradients_of(number, self._form, differences)
        settings = self._settings(number, count)
        ring.settings.write(settings)
        self._give(shares, gradients)
        sent_gradients = self._sparsify(number, gradients)
        outcome = self._execution.update()
        comparison.refuse_nonfinite(outcome, range(ring.nodes) if self._rings is None else self._rings.order,
                                    {number: gradients}, self._workload.element_at)
        losses = self._losses(number, losses)
        self.training.search, self.training.timeline = self._execution.log, self._execution.timeline

        traffic = (reference.unknown() if self._blind
                   else reference.step(sent_gradients, settings, self._execution.parts))
        before, counters = self._count()
        sent = comparison.growth(reference.counter, before, counters)
        if not self._blind:
            self._fetch(number)
        if config.check and sent != traffic.words.tolist():
            raise DivergenceError(f"Step {number}: nodes have sent {comparison.names(sent)} words, and must have "
                                  f"sent {comparison.names(traffic.words.tolist())}")
        return Step(
            number=number, epoch=batch.epoch, loss=sum(losses) / count, cycles=outcome.cycles, bound=traffic.bound,
            scatter_cycles=comparison.most("SCATTER_REDUCE_CYCLES", before, counters),
            scatter_bound=traffic.scatter_bound, words_sent=sum(sent), words_dense=traffic.dense_words,
            density=traffic.density.tolist(), scatter_words=int(traffic.scatter_words.sum()),
            weight_elements=traffic.gather_elements, weight_words=traffic.gather_payload,
            codebook_words=codebook_words, nodes=ring.nodes,
            **self._execution.figures(before, counters), **self._repairs(before, counters),
            sparsify_cycles=self._sparsify.cycles, threshold=self._sparsify.threshold,
            mask_cycles=None if masks.cycles is None else masks.cycles - (cycles or 0),
            elements_masked=masks.replaced - replaced, elements_through=masks.elements - elements), sum(losses), count

    @property
    def _gradients(self) -> int:
        """Number of gradients per step, each for one share of the batch."""
        return self._ring.nodes if self._config.microbatches is None else self._config.microbatches

    def _differentiate(self, shares: Sequence[npt.NDArray[np.intp]]) -> list[tuple[float, Array]]:
        """Compute the loss and gradient of each share, in waves of one share per node. Nodes mask their shares."""
        results: dict[int, tuple[float, Array]] = {}
        for wave in waves_of([1] * len(shares) if self._reference.counts is None else self._reference.counts):
            results |= zip(wave, self._workload.differentiate([shares[index] for index in wave], self._masks),
                           strict=True)
        return [results[index] for index in range(len(shares))]

    def _settings(self, number: int, count: int) -> Settings | FixedSettings:
        """Return the optimizer settings of a step with ``count`` losses."""
        optimizer, left = self._config.optimizer, 1 - (number - 1) / self._total
        return self._form.settings(optimizer, number, count=count, packed_state=self._config.packed_state,
                                   learning_rate=optimizer.learning_rate * left)

    def _give(self, shares: list[npt.NDArray[np.intp]], gradients: list[Vector]) -> None:
        """Write gradients to the nodes, or examples for nodes that compute gradients."""
        if self._computer is None:
            self._execution.write(gradients)
        else:
            self._execution.compute([self._workload.examples_of(share) for share in shares])

    def _losses(self, number: int, losses: list[float]) -> list[float]:
        """Return the losses of the shares. Losses from computing nodes are checked against ``losses``, which is
        returned if nodes do not compute."""
        if self._computer is None:
            return losses
        own = self._computer.losses()
        if self._config.check and own != losses:
            raise DivergenceError(f"Step {number}: nodes have computed losses of {comparison.names(own)}, and must "
                                  f"have computed {comparison.names(losses)}")
        return own

    def _repairs(self, before: list[dict[str, int]], after: list[dict[str, int]]) -> dict[str, Any]:
        """Return the number of injected link faults and repairs since the previous step."""
        injected, self._injected = self._injected, self._faults()
        return {"faults_injected": self._injected - injected, **{
            name: sum(comparison.growth(name.upper(), before, after))
            for name in ("link_restarts", "words_repeated", "checks_failed")}}

    def _count(self) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
        """Return each node's previous and current counters; add the growth of mask counters to the record."""
        before, self._counters = self._counters, self._ring.counters.read()
        self.training.elements_masked += sum(comparison.growth("ELEMENTS_MASKED", before, self._counters))
        self.training.mask_words_fetched += sum(comparison.growth("MASK_WORDS_FETCHED", before, self._counters))
        return before, self._counters

    def _counted(self, action: Callable[[], T]) -> T:
        """Run an action that may execute mask commands on nodes, and record their counts."""
        elements = self._masks.elements
        result = action()
        if self._masks.elements > elements or self._computer is not None:
            self._count()
        return result

    def finish(self) -> None:
        """Take a sample of the model's output, and compare the nodes' memories with the golden model."""
        training, masks = self.training, self._masks
        training.sample = self._repeat("sample", lambda: self._counted(
            lambda: self._workload.sample(self._ring.nodes, masks)))
        training.mask_cycles, training.elements_through = masks.cycles, masks.elements
        if self._blind:
            self._fetch(self._number)
        if self._rings is not None:
            self._rings.balance(self._number)
        self._execution.finish()
        if self._config.check:
            comparison.compare_end(self._ring, self._reference, self._config, training, weights=self._laid_out(),
                        replaced=masks.replaced + self._sparsify.dropped, words=masks.words)
            training.bit_exact = True

    @property
    def _newest(self) -> int:
        """Parity (0 or 1) of the pass with the newest weights. It selects the lists of computing nodes."""
        return 0

    def _laid_out(self) -> npt.NDArray[np.uint32]:
        """Return the weights in the layout of the nodes' memories, from the base address."""
        return self._reference.weights

    def _memory(self) -> dict[str, Any]:
        """Return all state that a step changes, except the step's figures."""
        if self._blind:
            self._reference.adopt(self._ring, packed_state=self._config.packed_state)
            self._fetch(self._number)
        return {"reference": self._reference.arrays(), "codebooks": self._codebooks.state(),
                "masks": self._masks.state(), "sparsify": self._sparsify.state(),
                "execution": self._execution.state(), "elements_masked": self.training.elements_masked,
                "mask_words_fetched": self.training.mask_words_fetched}

    def _fetch(self, number: int) -> None:
        """Copy the nodes' weights after a step to the model's parameters."""
        weights = comparison.read_weights(self._ring, self._reference, self._config, number)
        self._workload.parameters[...] = self._form.parameters(weights)

    def _recall(self, memory: dict[str, Any], *, nodes: bool = True) -> None:
        """Restore the host's state from before a step and, with ``nodes``, the nodes' state as well."""
        self._codebooks.restore(memory["codebooks"], self._reference)
        self._reference.restore(memory["reference"])
        self._masks.restore(memory["masks"])
        self._sparsify.restore(memory["sparsify"])
        self._execution.restore(memory["execution"])
        self.training.elements_masked = memory["elements_masked"]
        self.training.mask_words_fetched = memory["mask_words_fetched"]
        if nodes:
            write_nodes(self._ring.memory, self._reference, self._codebooks.centroids, self._config)
            self._prepare()
        self._counters = self._ring.counters.read()

    def _repeat(self, what: str, action: Callable[[], T]) -> T:
        """Run an action, repeating it from the beginning after a ring failure."""
        if self._blind:
            return action()
        memory = self._memory()

        def again(line: str) -> None:
            self._on_repeat(line)
            self._ring.recover()
            if self._rings is not None:
                self._rings.forget()
            self._recall(memory)
            self.training.repeats += 1

        return repeat(what, action, again)

    def state(self) -> dict[str, Any]:
        return {"memory": self._memory(), "settings": self._ring.settings.known,
                "parameters": self._workload.parameters.copy(),
                "interval_loss": self._interval_loss, "interval_count": self._interval_count,
                "stage": None if self._rings is None else self._rings.stage, "training": self.training.figures()}

    def resume(self, state: dict[str, Any], *, restored: bool = False) -> None:
        if self._rings is not None:
            self._bind(self._rings.enter(state["stage"]))
        self._workload.initialize(self._config.seed)
        self._workload.parameters[...] = state["parameters"]
        self._number = state["batches"]["number"]
        self._codebooks.centroids = state["memory"]["codebooks"]["centroids"]
        self._model(self._form.weights(self._workload.parameters))
        self.training = Training.from_figures(state["training"])
        self._interval_loss, self._interval_count = state["interval_loss"], state["interval_count"]
        self._reference.restore(state["memory"]["reference"])
        self._execution.restore(state["memory"]["execution"])
        self._ring.counters.clear()
        self._counters = self._ring.counters.read()
        repeats = self.training.repeats
        if not restored:
            self._repeat("first command", lambda: self._warm_up(state["settings"]))
        self.training.repeats = repeats  # without those of the warm-up, which exists only in a resumed run
        self._recall(state["memory"], nodes=not restored)
        self._ring.settings.write_registers(state["settings"])

    def _warm_up(self, settings: dict[str, int | float]) -> None:
        """Execute the commands of a step on the nodes and discard the results. Cycle counts depend slightly on which
        reader each memory serves next, which is different on new nodes until they have run a step."""
        ring = self._ring
        ring.settings.write_registers(settings)
        gradients = [self._form.weights(self._workload.parameters)] * self._gradients
        shares = np.array_split(np.arange(self._config.largest(self._workload.examples)), self._gradients)
        self._prepare()
        self._give(shares, gradients)
        if self._config.density is not None:
            ring.local.sparsify(self._length, threshold=0)
            self._give(shares, gradients)
        self._execution.warm_up()


#: Maximum number of consecutive repetitions of an action.
REPEATS = 3


def repeat(what: str, action: Callable[[], T], again: Callable[[str], None]) -> T:
    """Run an action until it succeeds, at most ``1 + REPEATS`` times. Raises ``RingError`` if the action fails every
    time, or if repeating it cannot help.

    Before each repetition, ``again`` is called with a line for the user that contains the action's name ``what``;
    ``again`` must restore the state before the action.
    """
    for failures in range(1, REPEATS + 2):
        try:
            return action()
        except RingError as error:
            if not error.transient:
                raise
            if failures > REPEATS:
                raise RingError(f"{what} failed {failures} times in a row, which is no passing disturbance: check "
                                f"the links of the ring; the last time {error}", cause=error.cause,
                                events=error.events) from error
            reason = str(error).partition("\n")[0]
        again(f"{what} is repeated: {reason}")
    raise AssertionError("the loop returns or raises")


def write_nodes(memory: RingMemory, reference: Reference, centroids: npt.NDArray[np.uint32] | None,
                config: TrainingConfig) -> None:
    """Write the golden model's state to the nodes, and the codebook if the weight codec has one."""
    if centroids is not None:
        memory.write_codebook(centroids)
    memory.write_weights(reference.weights)
    if reference.has_master:
        memory.write_master(reference.master)
    for plane, state in enumerate(reference.state):
        memory.write_state(state.view(np.float32), plane, packed_state=config.packed_state)
    if config.density is not None:
        memory.write_errors(list(reference.errors))
    if reference.residuals is not None:
        memory.write_residual(list(reference.residuals))


def check_run(node: Configuration, workload: Workload, config: TrainingConfig, *, nodes: int) -> None:
    """Raise ``ValueError`` with the reason if a ring of these nodes cannot execute a training run."""
    for present in features_of(node):
        present.check_numbers(workload, config)
    if config.density is not None:
        if not node.sparsify:
            raise ValueError("Nodes must have error feedback for a density, to keep the elements that they do not "
                             "send")
        check_zeros(node.gradients)
    config.allocation(workload.parameters.size).check(node, nodes=nodes)
    for name in config.features:
        feature(name).check_run(node, workload, config, nodes=nodes)
