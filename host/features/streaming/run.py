"""Runs of a relay on golden nodes: sets, assessors that edit the model, and logs by which a run is repeated.

A set takes the next examples of a series of orders of all examples, so that every microbatch is full. No clock enters
a decision: the first number of microbatches is the only one that comes from cycles, and it is in the log as an edit.

Assessors are rules that read what sets have left: reports alone (:class:`SetReport`), which have losses, and zeros
and saturations of each layer. So they decide the same in every run with the same bits.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from host.driver.optimizer_settings import Settings
from host.features.streaming.edits import Edit, Kind, RefusedError, Ring, Structure, edited, make_edit
from host.models.digits import Dataset
from host.models.layers import perceptron
from host.training.batches import Batch, SetBatches
from host.training.executor import Executor
from host.training.optimizers import Optimizer
from host.training.reference import golden_settings
from host.training.trainer import Trainer
from sim.arithmetic import functions
from sim.golden import ring
from sim.golden.features.streaming.relay import Counts, Server, Share, Unit, relay_set

__all__ = ["Assessor", "Blind", "Change", "Plateau", "RelayRun", "SetReport", "Together", "Underflow", "accuracy_of",
           "first_weights", "replayed"]


Bits = npt.NDArray[np.uint32]
#: Layer, kind and value of an edit.
Change = tuple[int, Kind, int | float | str]


@dataclasses.dataclass(frozen=True)
class SetReport:
    """Report of a set, which is all that the assessor knows."""

    #: Number of the set, from 0.
    number: int
    #: Loss summed over its examples, as a bit pattern.
    loss: int
    examples: int
    #: By layer, from 1: elements, zeros and saturations of weights in FETCH, and of gradients in PUSH.
    fetched: Mapping[int, Counts]
    pushed: Mapping[int, Counts]

    #: Program of the set.
    structure: Structure

    @property
    def mean_loss(self) -> float:
        """Mean loss of an example."""
        return float(np.uint32(self.loss).view(np.float32)) / self.examples


class Assessor(Protocol):
    """Reader of reports, one set after the other."""

    def assess(self, report: SetReport, following: Structure) -> Sequence[Change]:
        """Changes to the program of the next set but one, ``following`` being that of the next one."""
        ...

    def state(self) -> Any:
        """State that later changes depend on: numbers and texts, in lists and dictionaries."""
        ...

    def restore(self, state: Any) -> None:
        """Go on from a state of an assessor with the same parameters."""
        ...


def _split(vector: Bits, units: Sequence[Unit], width: int) -> Iterator[Bits]:
    """Masters of the units of a layer with ``width`` outputs, from its weights and biases."""
    inputs = units[0].inputs
    weights, biases = vector[:inputs * width].reshape(width, inputs), vector[inputs * width:][:width]
    for unit in units:
        part = slice(unit.first, unit.first + unit.outputs)
        mine = np.concatenate([weights[part].ravel(), biases[part]])
        yield np.concatenate([mine, np.zeros(unit.length - unit.words, np.uint32)])


def _by_layer(units: Sequence[Unit]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, unit in enumerate(units):
        found.setdefault(unit.layer, []).append(number)
    return found


def first_weights(structure: Structure, seed: int) -> list[Bits]:
    """First masters of all units, those of the host's perceptron."""
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


def _identity(units: Sequence[Unit], width: int) -> Iterator[Bits]:
    return _split(ring.bits(np.concatenate([np.eye(width).ravel(), np.zeros(width)])), units, width)


def edit_server(server: Server, old: Structure, edit: Edit) -> Structure:
    """Carry an edit out on the server's masters and state, and return the program behind it.

    A layer that is added is an identity, its bias and state are zeros: a function that changes no finite number of
    zero or more, as outputs of a ReLU are.
    """
    new = edited(old, edit.layer, edit.kind, edit.value)
    units, layers = list(new.plan.units), _by_layer(new.plan.units)
    before = _by_layer(old.plan.units)
    masters: list[Bits] = []
    state: list[list[Bits]] = []
    planes = len(server.state[0])
    for layer, numbers in layers.items():
        source = layer
        if edit.kind is Kind.ADD and layer == edit.layer:
            masters += _identity([units[number] for number in numbers], new.widths[layer])
            state += [[np.zeros(units[number].length, np.uint32) for _ in range(planes)] for number in numbers]
            continue
        if edit.kind is Kind.ADD and layer > edit.layer:
            source = layer - 1
        elif edit.kind is Kind.REMOVE and layer >= edit.layer:
            source = layer + 1
        masters += [server.masters[number] for number in before[source]]
        state += [server.state[number] for number in before[source]]
    server.units, server.masters, server.state = units, masters, state
    return new


def accuracy_of(server: Server, x: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> float:
    """Part of examples whose label has the largest score, with weights as workers have them."""
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


class RelayRun(Executor[SetReport]):
    """Sets of a relay on golden nodes, of which set 0 has the program of ``structure``, and with it the learning
    rate.

    Edits are sent in the set before theirs, as those of a log; of set 0, before the first set.
    """

    def __init__(self, data: Dataset, structure: Structure, *, workers: int, optimizer: Optimizer, seed: int = 0,
                 assessor: Assessor | None = None, edits: Sequence[Edit] = ()):
        self._data, self._workers, self._optimizer, self._seed = data, workers, optimizer, seed
        self._assessor, self._given = assessor, list(edits)
        self._start, self._structure = structure, structure
        #: Examples of the next sets.
        self.batches = SetBatches(len(data.train_y), seed)
        self._ring = Ring(structure, nodes=workers + 1)
        self.server = Server(structure.plan.units, first_weights(structure, seed), planes=optimizer.planes)
        self.reports: list[SetReport] = []
        #: All edits, in order.
        self.log: list[Edit] = []
        #: Messages about edits that the assessor has asked for in vain.
        self.refused: list[str] = []
        self._pending: list[Edit] = []
        for edit in (one for one in self._given if one.set == 0):
            self._send(edit)

    def propose(self, layer: int, kind: Kind, value: int | float | str) -> Edit:
        """Edit of the next set's program, with the next number: before the first set, that of the choice of
        microbatches."""
        edit = make_edit(self._ring.banks[-1].following, number=len(self.log) + 1, set=len(self.reports), layer=layer,
                         kind=kind, value=value)
        self._send(edit)
        return edit

    def _send(self, edit: Edit) -> None:
        self._ring.send(edit)
        self._ring.deliver_all()
        self.log.append(edit)
        self._pending.append(edit)

    def begin(self) -> None:
        """Do nothing: the server has the first weights."""

    def prepare(self, number: int) -> None:
        """Carry out the edits of the next set, whose program has its number of examples; the assessor's changes to
        what the set before has left travel meanwhile."""
        structure = self._ring.begin(number)
        for edit in self._pending:
            self._structure = edit_server(self.server, self._structure, edit)
        self._pending = []
        assert self._structure == structure
        for edit in (one for one in self._given if one.set == number + 1):
            self._send(edit)
        if self._assessor is not None and self.reports:
            for layer, kind, value in self._assessor.assess(self.reports[-1], self._ring.banks[-1].following):
                try:
                    self._send(make_edit(self._ring.banks[-1].following, number=len(self.log) + 1, set=number + 1,
                                         layer=layer, kind=kind, value=value))
                except RefusedError as error:
                    self.refused.append(str(error))
        self.batches.size = structure.count * structure.microbatch * self._workers

    def execute(self, first: int, batches: Sequence[Batch]) -> list[SetReport]:
        """Run a set."""
        number, structure, (batch,) = first - 1, self._structure, batches  # sets are numbered from 0
        indices = batch.examples
        shares: list[Share] = [(self._data.train_x[mine], self._data.train_y[mine])
                               for mine in indices.reshape(self._workers, -1)]
        loss = self._carry_out(shares, self._optimizer.settings(
            number + 1, gradient_scale=1 / len(indices), learning_rate=structure.rate), structure)
        fetched, pushed = ({layer: _together([counts[one] for one in numbers])
                            for layer, numbers in _by_layer(self.server.units).items()}
                           for counts in self._counts)
        return [SetReport(number, loss, len(indices), fetched, pushed, structure)]

    def record(self, step: SetReport) -> None:
        self.reports.append(step)

    @property
    def _counts(self) -> tuple[Mapping[int, Counts], Mapping[int, Counts]]:
        """Counts of each unit in FETCH and in PUSH, in the last set."""
        return self.server.fetched, self.server.pushed

    def _carry_out(self, shares: Sequence[Share], settings: Settings, structure: Structure) -> int:
        """Carry a set out, and return its loss as a bit pattern: here on golden nodes, layer by layer."""
        loss, _ = relay_set(self.server, shares, golden_settings(settings), microbatch=structure.microbatch,
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
            "masters": [one.copy() for one in self.server.masters],
            "state": [[one.copy() for one in planes] for planes in self.server.state]}

    def resume(self, state: dict[str, Any], *, restored: bool = False) -> None:
        """Continue from a state of a run with the same parameters; edits that were given count from there on.
        ``ValueError`` if the run has others, ``RefusedError`` if the log has an edit that nodes refuse."""
        for name, mine in self._origin().items():
            if state[name] != mine:
                raise ValueError(f"Run must go on from one with {name} {mine!r}, not {state[name]!r}")
        sets = state["batches"]["number"]
        self.log, self.refused = [Edit.parse(one) for one in state["log"]], list(state["refused"])
        self._ring, structures = Ring.behind(self._start, self.log, sets=sets, nodes=self._workers + 1)
        self._structure = structures[-1] if structures else self._start
        self._pending = [edit for edit in self.log if edit.set == sets]
        counts: list[dict[int, tuple[Counts, Counts]]] = [{} for _ in structures]
        for number, layer, *values in state["counts"].tolist():
            counts[number][layer] = Counts(*values[:3]), Counts(*values[3:])
        self.reports = [SetReport(
            number, int(loss), structure.count * structure.microbatch * self._workers,
            {layer: fetched for layer, (fetched, _) in found.items()},
            {layer: pushed for layer, (_, pushed) in found.items()}, structure)
            for number, (structure, loss, found) in enumerate(zip(structures, state["losses"], counts, strict=True))]
        self.server = Server(self._structure.plan.units, state["masters"], planes=self._optimizer.planes)
        self.server.state = [[one.copy() for one in planes] for planes in state["state"]]
        if self._assessor is not None:
            self._assessor.restore(state["assessor"])

    def _origin(self) -> dict[str, Any]:
        """Parameters of the run that its bits depend on."""
        return {"start": self._start.described(), "workers": self._workers, "seed": self._seed,
                "optimizer": repr(self._optimizer), "assessor_kind": type(self._assessor).__name__}

    @property
    def accuracy(self) -> float:
        """Test accuracy."""
        return accuracy_of(self.server, self._data.test_x, self._data.test_y)

    @property
    def digest(self) -> str:
        """SHA-256 of all losses, masters and state."""
        found = hashlib.sha256(np.array([report.loss for report in self.reports], np.uint32).tobytes())
        for master, planes in zip(self.server.masters, self.server.state, strict=True):
            for vector in (master, *planes):
                found.update(vector.tobytes())
        return found.hexdigest()

    def described(self) -> dict[str, Any]:
        """Log of the run."""
        return {"start": self._start.described(), "workers": self._workers, "seed": self._seed,
                "sets": len(self.reports), "edits": [edit.described() for edit in self.log],
                "losses": [f"{report.loss:08x}" for report in self.reports], "digest": self.digest}


def _together(counts: Sequence[Counts]) -> Counts:
    return Counts(*(sum(getattr(one, field.name) for one in counts) for field in dataclasses.fields(Counts)))


def replayed(data: Dataset, structure: Structure, log: Mapping[str, Any], *, optimizer: Optimizer) -> RelayRun:
    """Run with the edits of a log, and without an assessor; ``ValueError`` if the log is that of another program,
    ``RefusedError`` if nodes refuse an edit."""
    if log["start"]["digest"] != structure.digest:
        raise ValueError(f"Log must be of a run that begins with the program {structure.digest}, not "
                         f"{log['start']['digest']}")
    run = RelayRun(data, structure, workers=log["workers"], optimizer=optimizer, seed=log["seed"],
                   edits=[Edit.parse(one) for one in log["edits"]])
    trainer = Trainer(run, run.batches, total=log["sets"])
    trainer.train()
    return run


class Plateau:
    """Add a layer in front of the last one, at most ``most`` times, when the loss falls no more: when the mean of so
    many sets is above this ratio of that of as many before.

    Behind each layer the comparison begins anew.
    """

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


class Underflow:
    """Widen the format of a layer of whose weights more than a part become zeros in FETCH, in so many sets one after
    the other; ``wider`` has the next wider format of each format."""

    def __init__(self, *, part: float = 0.1, sets: int = 10,
                 wider: Mapping[str, str] = MappingProxyType({"mx4": "mx6"})):
        self._part, self._sets, self._wider = part, sets, wider
        self._count: collections.Counter[int] = collections.Counter()

    def assess(self, report: SetReport, following: Structure) -> Sequence[Change]:
        changes: list[Change] = []
        if report.structure.formats != following.formats:  # layers have other numbers, or their formats changed
            self._count.clear()
            return changes
        for layer, counts in sorted(report.fetched.items()):
            self._count[layer] = self._count[layer] + 1 if counts.zero_part > self._part else 0
            name = following.formats[layer - 1]
            if self._count[layer] >= self._sets and name in self._wider:
                changes.append((layer, Kind.FORMAT, self._wider[name]))
                self._count[layer] = 0
        return changes

    def state(self) -> list[list[int]]:
        return [[layer, count] for layer, count in sorted(self._count.items())]

    def restore(self, state: list[list[int]]) -> None:
        self._count = collections.Counter({layer: count for layer, count in state})


class Blind:
    """Widen the formats of all layers after the first ``sets``, whatever these have left; ``wider`` has the next
    wider format of each format."""

    def __init__(self, *, sets: int = 1, wider: Mapping[str, str] = MappingProxyType({"mx4": "mx6"})):
        self._sets, self._wider = sets, wider

    def assess(self, report: SetReport, following: Structure) -> Sequence[Change]:
        if report.number != self._sets - 1:
            return []
        return [(layer, Kind.FORMAT, self._wider[name]) for layer, name in enumerate(following.formats, start=1)
                if name in self._wider]

    def state(self) -> None:
        return None

    def restore(self, state: None) -> None:
        """Do nothing: the number of a set is in its report."""


class Together:
    """Several assessors, of which the first with changes is heard: layers have other numbers behind these."""

    def __init__(self, *assessors: Assessor):
        self._assessors = assessors

    def assess(self, report: SetReport, following: Structure) -> Sequence[Change]:
        found = [one.assess(report, following) for one in self._assessors]
        return next((changes for changes in found if changes), [])

    def state(self) -> list[Any]:
        return [one.state() for one in self._assessors]

    def restore(self, state: list[Any]) -> None:
        for one, mine in zip(self._assessors, state, strict=True):
            one.restore(mine)
