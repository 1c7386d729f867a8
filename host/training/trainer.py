"""Data-parallel training on a ring of nodes, checked bit for bit.

In each step a batch is split into one share per node. The host differentiates every share in float32 and writes the
gradients to the nodes, or writes inputs and labels to nodes that compute; the ring sums the gradients, the owner of
each block updates it, and the new weights come back to every node. Then all nodes' weights are compared with each
other and with the golden model, as bit patterns, and the words that each node has sent with those the golden model
predicts. Where nodes have a weight codec, the new weights come
back through it, gradients are those at the decoded weights, and the owners' masters are compared as well; a codec
with a codebook is given one of the first weights, and a new one of the masters now and then. Where they have a
gradient codec that loses something, their residuals are compared at the end of the run.

Nodes of 16-bit integers do the same with fixed points (:mod:`host.training.number_format`) and
:mod:`sim.golden.int16_node`. They have no links: the number of words of their gradients in compressed
form is compared.

Where the workload has something to be masked, nodes mask it, and everything that they mask is compared likewise. With
a density, nodes send only the largest elements of their gradients, and add the others to the next ones.

A step that the ring could not do, for a word that was damaged or lost on a link, is done again from its beginning.
A run can be taken apart (:meth:`Run.state`) and put together again on another ring of the same kind.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.protocols import TrainingRing
from host.driver.words import Vector
from host.models.digits import Dataset
from host.topology.grid import Plan, Shape
from host.training.batches import Batch, Batches
from host.training.codebooks import Codebooks
from host.training.comparison import compare_end, compare_memories, compare_scores, names, read_weights
from host.training.engine import Computer
from host.training.golden_run import IntegerReference, Reference
from host.training.grid_run import GridExecution, reference_of
from host.training.masks import Masks
from host.training.number_format import elements_of
from host.training.record import DivergenceError, Step, Training, TrainingConfig
from host.training.recovery import repeat, write_nodes
from host.training.rings import Rings
from host.training.schedule import Execution, execution_of
from host.training.sparsifier import Sparsifier
from host.training.step_checks import gradients_of, growth, most, refuse_nonfinite
from host.training.workloads import Classifier, Workload

__all__ = ["Run", "train"]

T = TypeVar("T")


class Run:
    """A training run that is under way.

    Parameters
    ----------
    ring : Ring or Rings
        The ring of all steps, or rings of a grid, one after the other.
    on_step : callable
        Called after every step, and after every measurement, with the outcome so far.
    on_repeat : callable
        Called with a line that names the part that is done again, and the reason.
    faults : callable
        Counts the faults that the links were given so far.

    Members
    -------
    training : Training
        Outcome so far.
    due : bool
        Whether the model was measured after the last step.
    """

    def __init__(self, ring: TrainingRing | Rings, workload: Workload, config: TrainingConfig, *,
                 on_step: Callable[[Training], None] = lambda training: None,
                 on_repeat: Callable[[str], None] = lambda line: None, faults: Callable[[], int] = lambda: 0):
        self._rings = ring if isinstance(ring, Rings) else None
        self._workload = workload
        self._config = config
        self._on_step = on_step
        self._on_repeat = on_repeat
        self._faults, self._injected = faults, faults()
        self._length = workload.parameters.size
        self._batches = Batches(workload.examples, config)
        first = ring.ring if isinstance(ring, Rings) else ring
        self._form = elements_of(first, config.optimizer, config.largest(workload.examples))
        self._bind(first)
        # Without a golden model, nobody but the nodes knows what a step would have to be done again from.
        self._blind = self._computer is not None and not config.check
        self.training = Training(nodes=first.nodes, parameters=self._length)
        self.due = False
        self._interval_loss, self._interval_count = 0.0, 0

    def _bind(self, ring: TrainingRing) -> None:
        """Do the next steps on these nodes."""
        config = self._config
        self._ring = ring
        ring.memory.require(config.allocation(self._length))
        self._codebooks = Codebooks(ring, config.refresh)
        if self._plan is not None and self._plan.shape is Shape.GRID:
            self._execution: Execution = GridExecution(ring, self._length)
        else:
            self._execution = self._executes(ring)
        self._computer = self._execution.computer

    def _executes(self, ring: TrainingRing) -> Execution:
        """The way in which nodes do steps."""
        return execution_of(ring, self._workload, self._config)

    @property
    def _plan(self) -> Plan | None:
        """Rings of a grid, where there is one."""
        return None if self._rings is None else self._rings.plan

    @property
    def complete(self) -> bool:
        """Whether all steps have been done."""
        return self._batches.number == self._batches.total

    def begin(self) -> None:
        """Give the nodes the first weights."""
        parameters, config = self._workload.parameters, self._config
        self._workload.initialize(config.seed)
        if self._ring.formats.has_codebook:
            self._codebooks.load(parameters)
        self._model(self._form.weights(parameters))
        first = self._form.weights(parameters)
        self._repeat("distribution of the first weights", lambda: self._distribute(first))
        self._prepare()
        self._ring.counters.clear()
        self._counters = self._ring.counters.read()

    def _prepare(self) -> None:
        """Give nodes that compute what they need beside the model."""
        if self._computer is not None:
            self._computer.prepare()

    def _model(self, weights: Vector) -> None:
        """Make the golden model, and the masks and the sparsifier that go with it."""
        ring, config = self._ring, self._config
        self._reference: Reference = (IntegerReference(weights) if ring.formats.int16
                           else reference_of(ring, self._plan, weights, config.optimizer.planes,
                                             self._codebooks.centroids))
        self._masks = Masks(ring.local, self._reference, config)
        self._sparsify = Sparsifier(ring, self._reference, self._form, config, self._batches.total)

    def _distribute(self, weights: Vector) -> None:
        ring, config = self._ring, self._config
        ring.collectives.distribute(weights)  # residuals are zeros afterwards
        if self._reference.has_master or ring.formats.int16:
            self._workload.parameters[...] = self._form.parameters(read_weights(ring, self._reference, config, 0))
        if config.optimizer.planes:
            ring.memory.clear_state(self._length, packed_state=config.packed_state)
        if config.density is not None:
            ring.memory.clear_errors(self._length)

    def advance(self) -> None:
        """Do a step and, where it is due, measure the model; before that, change the rings if they are to."""
        if self._rings is not None and self._rings.due(self._batches.number):
            self._change(self._rings)
        batch = self._batches.take()
        number = self._batches.number
        before = self.training.repeats
        step, loss, count = self._repeat(f"step {number}", lambda: self._step(number, batch))
        self.training.steps.append(dataclasses.replace(step, repeats=self.training.repeats - before))
        self._interval_loss += loss
        self._interval_count += count
        self.due = batch.due
        self._on_step(self.training)
        if batch.due:
            self._note_measure(number)

    def _change(self, rings: Rings) -> None:
        """Go on in other rings, whose nodes, and golden model, have what those before had."""
        number, memory, old = self._batches.number, self._memory(), rings.plan
        change = rings.move(number, self._length, self._config)
        self._bind(rings.ring)
        self._codebooks.move(memory["codebooks"])
        self._model(self._form.weights(self._workload.parameters))
        self._reference.restore(rings.handed_over(memory["reference"], old))
        self._masks.restore(memory["masks"])
        self._sparsify.succeed(memory["sparsify"])
        self._execution.restore(memory["execution"])
        if self._config.check:
            read_weights(self._ring, self._reference, self._config, number)
            compare_memories(self._ring, self._reference, self._config, number)
        self._counters = self._ring.counters.read()
        self.training.changes.append(change)

    def _note_measure(self, number: int) -> None:
        """Measure the model after a step."""
        measure = self._repeat(f"measurement after step {number}", lambda: self._counted(self._measure))
        self.training.losses.append(self._interval_loss / self._interval_count)
        self.training.measures.append(measure)
        self.training.measured.append(number)
        self._interval_loss, self._interval_count = 0.0, 0
        self._on_step(self.training)

    def _measure(self) -> float:
        """Measure the model, a perceptron on the nodes where these compute."""
        if not (isinstance(self._computer, Computer) and isinstance(self._workload, Classifier)):
            if self._blind:
                self._fetch()
            return self._workload.measure(self._ring.nodes, self._masks, last=self.complete)
        scores = self._computer.scores(self._workload.test_x, odd=self._newest)
        if self._config.check:
            compare_scores(self._batches.number, self._workload.scores(), scores)
        return self._workload.rate(scores)

    def _step(self, number: int, batch: Batch) -> tuple[Step, float, int]:
        """Do a step: its figures, its loss summed over the batch, and the number of losses in that sum."""
        ring, config, reference, masks = self._ring, self._config, self._reference, self._masks
        parameters = self._workload.parameters
        masks.number = number
        shares = np.array_split(batch.examples, ring.nodes)
        cycles, replaced, elements = masks.cycles, masks.replaced, masks.elements
        codebook_words = self._codebooks.refresh(number, reference)
        count = self._workload.count(batch.examples)
        losses, gradients = [], []
        if not self._blind:
            found, differences = zip(*self._workload.differentiate(shares, masks), strict=True)
            losses, gradients = list(found), gradients_of(number, self._form, differences)
        settings = self._settings(number, count)
        ring.settings.write(settings)
        self._give(shares, gradients)
        sent_gradients = self._sparsify(number, gradients)
        outcome = self._execution.update()
        refuse_nonfinite(number, outcome, range(ring.nodes) if self._plan is None else self._plan.order)
        losses = self._losses(number, losses)
        self.training.search, self.training.timeline = self._execution.log, self._execution.timeline

        traffic = (reference.unknown() if self._blind
                   else reference.step(sent_gradients, settings, self._execution.parts))
        before, counters = self._count()
        sent = growth(reference.counter, before, counters)
        if not self._blind:
            parameters[...] = self._form.parameters(read_weights(ring, reference, config, number))
        if config.check and sent != traffic.words.tolist():
            raise DivergenceError(f"Step {number}: nodes have sent {names(sent)} words, and must have sent "
                                  f"{names(traffic.words.tolist())}")
        return Step(
            number=number, epoch=batch.epoch, loss=sum(losses) / count, cycles=outcome.cycles, bound=traffic.bound,
            scatter_cycles=most("SCATTER_REDUCE_CYCLES", before, counters),
            scatter_bound=traffic.scatter_bound, words_sent=sum(sent), words_dense=traffic.dense_words,
            density=traffic.density.tolist(), scatter_words=int(traffic.scatter_words.sum()),
            weight_elements=traffic.gather_elements, weight_words=traffic.gather_payload,
            codebook_words=codebook_words, nodes=ring.nodes,
            **self._execution.figures(before, counters), **self._repairs(before, counters),
            sparsify_cycles=self._sparsify.cycles, threshold=self._sparsify.threshold,
            mask_cycles=None if masks.cycles is None else masks.cycles - (cycles or 0),
            elements_masked=masks.replaced - replaced, elements_through=masks.elements - elements), sum(losses), count

    def _settings(self, number: int, count: int) -> Settings | FixedSettings:
        """Settings of a step, whose losses are ``count``."""
        optimizer, left = self._config.optimizer, 1 - (number - 1) / self._batches.total
        return self._form.settings(optimizer, number, count=count, packed_state=self._config.packed_state,
                                   learning_rate=optimizer.learning_rate * left)

    def _give(self, shares: list[npt.NDArray[np.intp]], gradients: list[Vector]) -> None:
        """Give nodes the gradients, or that from which they compute them."""
        if self._computer is None:
            self._execution.write(gradients)
            return
        self._execution.compute([self._workload.examples_of(share) for share in shares])

    def _losses(self, number: int, losses: list[float]) -> list[float]:
        """Losses of the shares: those of the nodes where these compute, compared with the given ones."""
        if self._computer is None:
            return losses
        found = self._computer.losses()
        if self._config.check and found != losses:
            raise DivergenceError(f"Step {number}: nodes have computed losses of {names(found)}, and must have "
                                  f"computed {names(losses)}")
        return found

    def _repairs(self, before: list[dict[str, int]], after: list[dict[str, int]]) -> dict[str, Any]:
        """Faults of links since the step before, and their repairs."""
        injected, self._injected = self._injected, self._faults()
        return {"faults_injected": self._injected - injected, **{
            name: sum(growth(name.upper(), before, after))
            for name in ("link_restarts", "words_repeated", "checks_failed")}}

    def _count(self) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
        """Counters of each node before and now, of which those of masks are added up."""
        before, self._counters = self._counters, self._ring.counters.read()
        self.training.elements_masked += sum(growth("ELEMENTS_MASKED", before, self._counters))
        self.training.mask_words_fetched += sum(growth("MASK_WORDS_FETCHED", before, self._counters))
        return before, self._counters

    def _counted(self, action: Callable[[], T]) -> T:
        """Do an action that may have nodes mask, and count their masking."""
        elements = self._masks.elements
        result = action()
        if self._masks.elements > elements or self._computer is not None:
            self._count()
        return result

    def finish(self) -> Training:
        """Take a sample, and compare the memories of the nodes with the golden model."""
        training, masks = self.training, self._masks
        training.sample = self._repeat("sample", lambda: self._counted(
            lambda: self._workload.sample(self._ring.nodes, masks)))
        training.mask_cycles, training.elements_through = masks.cycles, masks.elements
        if self._blind:
            self._fetch()
        if self._rings is not None:
            self._rings.balance(self._batches.number)
        if self._config.check:
            compare_end(self._ring, self._reference, self._config, training, weights=self._laid_out(),
                        replaced=masks.replaced + self._sparsify.dropped, words=masks.words)
            training.bit_exact = True
        return training

    @property
    def _newest(self) -> int:
        """Lists of nodes that compute with the newest weights: those of even passes, 0, or of odd ones."""
        return 0

    def _laid_out(self) -> npt.NDArray[np.uint32]:
        """Weights as they lie from the base on."""
        return self._reference.weights

    def _memory(self) -> dict[str, Any]:
        """State that a step changes, but for its figures."""
        if self._blind:
            self._reference.adopt(self._ring, packed_state=self._config.packed_state)
            self._fetch()
        return {"reference": self._reference.arrays(), "codebooks": self._codebooks.state(),
                "masks": self._masks.state(), "sparsify": self._sparsify.state(),
                "execution": self._execution.state(),
                "elements_masked": self.training.elements_masked,
                "mask_words_fetched": self.training.mask_words_fetched}

    def _fetch(self) -> None:
        """Take the weights of the nodes, which the host has no need of before."""
        found = read_weights(self._ring, self._reference, self._config, self._batches.number)
        self._workload.parameters[...] = self._form.parameters(found)

    def _recall(self, memory: dict[str, Any], *, nodes: bool = True) -> None:
        """Go back to the beginning of a step, or on from where another process has ended; ``nodes`` as well."""
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
        """Do an action, and repeat it from its beginning after a failure of the ring."""
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
        """State that the rest of the run depends on, and the outcome so far: numbers, texts, arrays, and lists and
        dictionaries of them."""
        return {"memory": self._memory(), "batches": self._batches.state(), "settings": self._ring.settings.known,
                "parameters": self._workload.parameters.copy(), "due": self.due,
                "interval_loss": self._interval_loss, "interval_count": self._interval_count,
                "stage": None if self._rings is None else self._rings.stage, "training": self.training.figures()}

    def resume(self, state: dict[str, Any], *, restored: bool = False) -> None:
        """Go on from a state, in place of :meth:`begin`; ``restored`` nodes have their part of it already."""
        if self._rings is not None:
            self._bind(self._rings.enter(state["stage"]))
        self._workload.initialize(self._config.seed)
        self._workload.parameters[...] = state["parameters"]
        self._batches.restore(state["batches"])
        self._codebooks.centroids = state["memory"]["codebooks"]["centroids"]
        self._model(self._form.weights(self._workload.parameters))
        self.training = Training.from_figures(state["training"])
        self.due, self._interval_loss = state["due"], state["interval_loss"]
        self._interval_count = state["interval_count"]
        self._reference.restore(state["memory"]["reference"])
        self._execution.restore(state["memory"]["execution"])
        self._ring.counters.clear()
        self._counters = self._ring.counters.read()
        repeats = self.training.repeats
        if not restored:
            self._repeat("first command", lambda: self._warm_up(state["settings"]))
        self.training.repeats = repeats  # a run that was not stopped has none here
        self._recall(state["memory"], nodes=not restored)
        self._ring.settings.restore(state["settings"])

    def _warm_up(self, settings: dict[str, int | float]) -> None:
        """Have nodes do commands of a step, whose results are then replaced. Memories serve their readers in turn;
        cycles depend a little on whose turn it is, which differs between new nodes and nodes after a step."""
        ring = self._ring
        ring.settings.restore(settings)
        gradients = [self._form.weights(self._workload.parameters)] * ring.nodes
        shares = np.array_split(np.arange(self._config.largest(self._workload.examples)), ring.nodes)
        self._prepare()
        self._give(shares, gradients)
        if self._config.density is not None:
            ring.local.sparsify(self._length, threshold=0)
            self._give(shares, gradients)
        self._execution.warm_up()


def train(ring: TrainingRing, data: Dataset | Workload, config: TrainingConfig, *,
          on_step: Callable[[Training], None] = lambda training: None,
          on_repeat: Callable[[str], None] = lambda line: None) -> Training:
    """Train on the ring.

    Parameters
    ----------
    data : Dataset or Workload
        Workload; for a data set, a perceptron that classifies it.

    Raises
    ------
    DivergenceError
        A node does not agree with the golden model.
    TrainingError
        Gradients are not finite.
    RingError
        A command has failed, and failed again each time that it was repeated.
    """
    if isinstance(data, Dataset):
        data = Classifier(data, config.hidden, align=config.align, operands=config.compute_format)
    run = Run(ring, data, config, on_step=on_step, on_repeat=on_repeat)
    run.begin()
    while not run.complete:
        run.advance()
    return run.finish()
