"""Layer streaming runs on golden nodes: sets, assessors that edit the model, and run logs.

A set takes the next examples from a sequence of permutations of all examples, so that every microbatch is full. Only
the initial number of microbatches may depend on measured cycles; the log records it as an edit.

Assessors are rules that see only the reports of sets (:class:`SetReport`): losses, and each layer's zeros and
saturations. They therefore make the same decisions in all runs with the same bits.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from host.driver.optimizer_settings import Settings
from host.features.streaming.edits import Banks, Edit, Kind, RefusedError, Structure, edited, make_edit
from host.models.digits import Dataset
from host.models.layers import perceptron
from host.training.batches import Batch, SetBatches
from host.training.executor import Executor
from host.training.optimizers import Optimizer
from host.training.reference import golden_settings
from sim.arithmetic import functions
from sim.golden import ring
from sim.golden.features.streaming.streaming import Counts, Server, Share, Unit, streaming_set

__all__ = [
    "Assessor",
    "Change",
    "GoldenStreaming",
    "Plateau",
    "SetReport",
    "Together",
    "Underflow",
    "accuracy_of",
    "edit_server",
    "first_weights",
    "trained_weights",
]


Bits = npt.NDArray[np.uint32]
#: A proposed edit: layer, kind and value.
Change = tuple[int, Kind, int | float | str]


@dataclasses.dataclass(frozen=True)
class SetReport:
    """Report of a set of microbatches, on which assessors base their decisions."""

    #: Number of the set, from 0.
    number: int
    #: Loss summed over all examples of the set, as a bit pattern.
    loss: int
    examples: int
    #: Elements, zeros and saturations of FETCH weights and of PUSH gradients, keyed by layer number from 1.
    fetched: Mapping[int, Counts]
    pushed: Mapping[int, Counts]

    #: Program of the set.
    structure: Structure

    @property
    def mean_loss(self) -> float:
        """Mean loss per example."""
        return float(np.uint32(self.loss).view(np.float32)) / self.examples


class Assessor(Protocol):
    """Rule that reads the reports of sets in order and proposes edits."""

    def assess(self, report: SetReport, following: Structure) -> Sequence[Change]:
        """Propose changes to ``following``, the program of the next set."""

    def state(self) -> Any:
        """Return the state that affects later edits, as lists and dictionaries of numbers and strings."""

    def restore(self, state: Any) -> None:
        """Restore the state; the assessor must have the same parameters."""


def _split(vector: Bits, units: Sequence[Unit], width: int) -> Iterator[Bits]:
    """Split the weights and biases of a layer with ``width`` outputs into its units' master weights."""
    inputs = units[0].inputs
    weights, biases = vector[:inputs * width].reshape(width, inputs), vector[inputs * width:][:width]
    for unit in units:
        part = slice(unit.first, unit.first + unit.outputs)
        words = np.concatenate([weights[part].ravel(), biases[part]])
        yield np.concatenate([words, np.zeros(unit.length - unit.words, np.uint32)])


def _by_layer(units: Sequence[Unit]) -> dict[int, list[int]]:
    """Group unit numbers by layer."""
    return {layer: [number for number, unit in enumerate(units) if unit.layer == layer]
            for layer in dict.fromkeys(unit.layer for unit in units)}


def first_weights(structure: Structure, seed: int) -> list[Bits]:
    """Return the initial master weights of all units, taken from the host's perceptron."""
    widths = structure.widths
    model = perceptron(widths[0], widths[1:-1], widths[-1])
    model.initialize(seed)
    units, base = structure.plan.units, 0
    masters: list[Bits] = []
    for layer, numbers in _by_layer(units).items():
        length = (widths[layer - 1] + 1) * widths[layer]
        masters += _split(ring.bits(model.parameters[base:base + length]), [units[n] for n in numbers],
                          widths[layer])
        base += length
    return masters


def trained_weights(server: Server) -> list[Bits]:
    """Return the master weights of all layers, each followed by its biases, without padding: the inverse of
    :func:`first_weights`, for any division into units."""
    vectors: list[Bits] = []
    for numbers in _by_layer(server.units).values():
        parts = [(server.masters[number], server.units[number]) for number in numbers]
        vectors += [master[:unit.inputs * unit.outputs] for master, unit in parts]
        vectors += [master[unit.inputs * unit.outputs:unit.words] for master, unit in parts]
    return vectors


def edit_server(server: Server, old: Structure, edit: Edit) -> Structure:
    """Apply an edit to the server's master weights and state; return the resulting program.

    An added layer is the identity with zero bias and state, so it leaves finite nonnegative numbers, such as the
    outputs of a ReLU, unchanged.
    """
    new = edited(old, edit.layer, edit.kind, edit.value)
    units, before = list(new.plan.units), _by_layer(old.plan.units)
    masters: list[Bits] = []
    state: list[list[Bits]] = []
    for layer, numbers in _by_layer(units).items():
        if edit.kind is Kind.ADD and layer == edit.layer:
            width, own = new.widths[layer], [units[number] for number in numbers]
            masters += _split(ring.bits(np.concatenate([np.eye(width).ravel(), np.zeros(width)])), own, width)
            state += [[np.zeros(unit.length, np.uint32) for _ in server.state[0]] for unit in own]
            continue
        shift = {Kind.ADD: -(layer > edit.layer), Kind.REMOVE: int(layer >= edit.layer)}.get(edit.kind, 0)
        masters += [server.masters[number] for number in before[layer + shift]]
        state += [server.state[number] for number in before[layer + shift]]
    server.units, server.masters, server.state = units, masters, state
    return new


def accuracy_of(server: Server, x: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> float:
    """Return the fraction of correctly classified examples, using the weights that workers receive."""
    for layer, numbers in _by_layer(server.units).items():
        made = []
        for number in numbers:
            unit, vector = server.units[number], ring.floats(server.decoded(number))
            weights = vector[:unit.inputs * unit.outputs].reshape(unit.outputs, unit.inputs)
            biases = vector[unit.inputs * unit.outputs:][:unit.outputs]
            made.append(functions.product(x, weights.T, np.broadcast_to(biases, (len(x), unit.outputs))))
        x = np.concatenate(made, axis=1)
        if layer < server.units[-1].layer:
            x = np.where(x <= 0, np.float32(0), x)
    return float((x.argmax(axis=1) == labels).mean())


class GoldenStreaming(Executor[SetReport]):
    """Executor of layer streaming on golden nodes, starting with the program and learning rate of ``structure``.
    ``edits`` are sent one set before they take effect; edits for set 0 are sent before the run."""

    def __init__(self, data: Dataset, structure: Structure, *, workers: int, optimizer: Optimizer, seed: int = 0,
                 assessor: Assessor | None = None, edits: Sequence[Edit] = ()):
        self._data, self._workers, self._optimizer, self._seed = data, workers, optimizer, seed
        self._assessor, self._edits = assessor, list(edits)
        self._start, self._structure = structure, structure
        #: Batches of examples for the following sets.
        self.batches = SetBatches(len(data.train_y), seed)
        self._banks = Banks(structure)
        self.server = Server(structure.plan.units, first_weights(structure, seed), planes=optimizer.planes)
        self.reports: list[SetReport] = []
        #: All edits so far, in order.
        self.log: list[Edit] = []
        #: Messages about rejected edits of the assessor.
        self.refused: list[str] = []
        self._pending: list[Edit] = []
        self._send_edits(0)

    def propose(self, layer: int, kind: Kind, value: int | float | str, *, number: int | None = None) -> None:
        """Send an edit that takes effect in set ``number`` (default: the next set)."""
        self._send(make_edit(
            self._banks.following, number=len(self.log) + 1, set=len(self.reports) if number is None else number,
            layer=layer, kind=kind, value=value))

    def _send_edits(self, number: int) -> None:
        """Send the log's edits that take effect in set ``number``."""
        for edit in (candidate for candidate in self._edits if candidate.set == number):
            self._send(edit)

    def _send(self, edit: Edit) -> None:
        self._banks.receive(edit)
        self.log.append(edit)
        self._pending.append(edit)

    def begin(self) -> None:
        """Do nothing, because the server already holds the initial weights."""

    def prepare(self, number: int) -> None:
        """Apply the next set's edits, which determine its number of examples, then send the edits for the set after
        it, from the log and from the assessor."""
        structure = self._banks.begin(number)
        for edit in self._pending:
            self._structure = edit_server(self.server, self._structure, edit)
        self._pending = []
        assert self._structure == structure
        self._send_edits(number + 1)
        if self._assessor is not None and self.reports:
            for layer, kind, value in self._assessor.assess(self.reports[-1], self._banks.following):
                try:
                    self.propose(layer, kind, value, number=number + 1)
                except RefusedError as error:
                    self.refused.append(str(error))
        self.batches.size = structure.count * structure.microbatch * self._workers

    def execute(self, first: int, batches: Sequence[Batch]) -> list[SetReport]:
        """Run the next set of microbatches."""
        number, structure, (batch,) = first - 1, self._structure, batches  # sets are numbered from 0
        indices = batch.examples
        shares: list[Share] = [(self._data.train_x[rows], self._data.train_y[rows])
                               for rows in indices.reshape(self._workers, -1)]
        loss = self._carry_out(shares, self._optimizer.settings(
            number + 1, gradient_scale=1 / len(indices), learning_rate=structure.rate), structure)
        fetched, pushed = ({layer: _together([counts[unit] for unit in numbers])
                            for layer, numbers in _by_layer(self.server.units).items()}
                           for counts in self._counts)
        return [SetReport(number, loss, len(indices), fetched, pushed, structure)]

    def record(self, step: SetReport) -> None:
        self.reports.append(step)

    @property
    def _counts(self) -> tuple[Mapping[int, Counts], Mapping[int, Counts]]:
        """Return each unit's counts from the last FETCH and the last PUSH."""
        return self.server.fetched, self.server.pushed

    def _carry_out(self, shares: Sequence[Share], settings: Settings, structure: Structure) -> int:
        """Run a set layer by layer on golden nodes (subclasses may differ); return its loss as a bit pattern."""
        loss, _ = streaming_set(self.server, shares, golden_settings(settings), microbatch=structure.microbatch,
                            functions=functions)
        return loss

    def state(self) -> dict[str, Any]:
        counts = [[report.number, layer, *dataclasses.astuple(report.fetched[layer]),
                   *dataclasses.astuple(report.pushed[layer])] for report in self.reports for layer in report.fetched]
        return {
            **self._origin(), "log": [edit.described() for edit in self.log], "refused": list(self.refused),
            "losses": np.array([report.loss for report in self.reports], np.uint32),
            "counts": np.array(counts, np.int64).reshape(-1, 8),
            "assessor": None if self._assessor is None else self._assessor.state(),
            "masters": [vector.copy() for vector in self.server.masters],
            "state": [[vector.copy() for vector in planes] for planes in self.server.state]}

    def resume(self, state: dict[str, Any], *, restored: bool = False) -> None:
        """Resume from the state of a run with the same parameters and the remaining edits of its log. Raises
        ``ValueError`` if parameters differ, and ``RefusedError`` if nodes reject a restored edit."""
        for name, own in self._origin().items():
            if state[name] != own:
                raise ValueError(f"Run must go on from one with {name} {own!r}, not {state[name]!r}")
        sets = state["batches"]["number"]
        self.log, self.refused = [Edit.parse(entry) for entry in state["log"]], list(state["refused"])
        self._banks, structures = Banks(self._start), []
        for number in range(sets + 1):
            self._pending = [edit for edit in self.log if edit.set == number]
            for edit in self._pending:
                self._banks.receive(edit)
            if number < sets:
                structures.append(self._banks.begin(number))
        self._structure = structures[-1] if structures else self._start
        counts: list[dict[int, tuple[Counts, Counts]]] = [{} for _ in structures]
        for number, layer, *values in state["counts"].tolist():
            counts[number][layer] = Counts(*values[:3]), Counts(*values[3:])
        self.reports = [SetReport(
            number, int(loss), structure.count * structure.microbatch * self._workers,
            {layer: fetched for layer, (fetched, _) in tally.items()},
            {layer: pushed for layer, (_, pushed) in tally.items()}, structure)
            for number, (structure, loss, tally) in enumerate(zip(structures, state["losses"], counts, strict=True))]
        self.server = Server(self._structure.plan.units, state["masters"], planes=self._optimizer.planes)
        self.server.state = [[entry.copy() for entry in planes] for planes in state["state"]]
        if self._assessor is not None:
            self._assessor.restore(state["assessor"])

    def _origin(self) -> dict[str, Any]:
        """Return the run parameters that affect the bits of the results."""
        return {"start": self._start.described(), "workers": self._workers, "seed": self._seed,
                "optimizer": repr(self._optimizer), "assessor_kind": type(self._assessor).__name__}

    @property
    def accuracy(self) -> float:
        """Accuracy on the test set."""
        return accuracy_of(self.server, self._data.test_x, self._data.test_y)

    @property
    def digest(self) -> str:
        """SHA-256 of all losses, master weights and optimizer state."""
        sha = hashlib.sha256(np.array([report.loss for report in self.reports], np.uint32).tobytes())
        for master, planes in zip(self.server.masters, self.server.state, strict=True):
            for vector in (master, *planes):
                sha.update(vector.tobytes())
        return sha.hexdigest()

    def described(self) -> dict[str, Any]:
        """Return the log of the run."""
        return {"start": self._start.described(), "workers": self._workers, "seed": self._seed,
                "sets": len(self.reports), "edits": [edit.described() for edit in self.log],
                "losses": [f"{report.loss:08x}" for report in self.reports], "digest": self.digest}


def _together(counts: Sequence[Counts]) -> Counts:
    return Counts(*(sum(getattr(part, field.name) for part in counts) for field in dataclasses.fields(Counts)))


class Plateau:
    """Add a layer before the last one when the loss stops falling, at most ``most`` times. The mean loss of the last
    ``sets`` sets must exceed ``ratio`` times the mean of the ``sets`` sets before, all after the last added layer."""

    def __init__(self, *, sets: int = 15, ratio: float = 0.97, most: int = 1):
        if sets < 1 or most < 0:
            raise ValueError(f"Sets and layers of a plateau must be at least 1 and 0, not {sets!r} and {most!r}")
        self._sets, self._ratio, self._left = sets, ratio, most
        self._losses: collections.deque[float] = collections.deque(maxlen=2 * sets)

    def assess(self, report: SetReport, following: Structure) -> Sequence[Change]:
        self._losses.append(report.mean_loss)
        losses = list(self._losses)
        if not self._left or len(losses) < 2 * self._sets:
            return []
        if sum(losses[self._sets:]) <= self._ratio * sum(losses[:self._sets]):
            return []
        self._left -= 1
        self._losses.clear()
        return [(following.layers, Kind.ADD, following.widths[-2])]

    def state(self) -> dict[str, Any]:
        return {"left": self._left, "losses": list(self._losses)}

    def restore(self, state: dict[str, Any]) -> None:
        self._left = state["left"]
        self._losses = collections.deque(state["losses"], maxlen=2 * self._sets)


#: The next wider format, for formats that can be too narrow.
_WIDER = {"mx4": "mx6"}


class Underflow:
    """Widen a layer's format if, in ``sets`` consecutive sets, more than a fraction ``part`` of its weights become
    zero in FETCH."""

    def __init__(self, *, part: float = 0.1, sets: int = 10):
        self._part, self._sets = part, sets
        self._count: collections.Counter[int] = collections.Counter()

    def assess(self, report: SetReport, following: Structure) -> Sequence[Change]:
        changes: list[Change] = []
        if report.structure.formats != following.formats:  # layers have been renumbered or their formats changed
            self._count.clear()
            return changes
        for layer, counts in sorted(report.fetched.items()):
            self._count[layer] = self._count[layer] + 1 if counts.zero_part > self._part else 0
            name = following.formats[layer - 1]
            if self._count[layer] >= self._sets and name in _WIDER:
                changes.append((layer, Kind.FORMAT, _WIDER[name]))
                self._count[layer] = 0
        return changes

    def state(self) -> list[list[int]]:
        return [[layer, count] for layer, count in sorted(self._count.items())]

    def restore(self, state: list[list[int]]) -> None:
        self._count = collections.Counter({layer: count for layer, count in state})


class Together:
    """Combine assessors; only the first that makes proposals is used, as its changes may renumber layers."""

    def __init__(self, *assessors: Assessor):
        self._assessors = assessors

    def assess(self, report: SetReport, following: Structure) -> Sequence[Change]:
        proposed = [assessor.assess(report, following) for assessor in self._assessors]
        return next((changes for changes in proposed if changes), [])

    def state(self) -> list[Any]:
        return [assessor.state() for assessor in self._assessors]

    def restore(self, state: list[Any]) -> None:
        for assessor, saved in zip(self._assessors, state, strict=True):
            assessor.restore(saved)
