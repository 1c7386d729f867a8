"""Golden model of the instruction ROWS: its operands, what is wrong with it, and what it does.

Its functions are in :mod:`sim.golden.features.compute.row_functions`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.features.compute.layer_list import RowFunction
from sim.golden.features.compute.list_operand import Memories, Operand
from sim.golden.features.compute.row_functions import gather, norm, norm_back, scatter, softmax_back
from sim.golden.summation import canonical

__all__ = ["ROW_OPERANDS", "ROW_TABLES", "ROW_USES", "Rows", "rows_instruction"]

Array = npt.NDArray[np.float32]

ROW_OPERANDS = ("target", "second", "third", "deviation", "x", "y", "start", "scale", "shift")
"""Operands in the order in which they are checked: the targets first."""

#: Functions that take a ``start``, and those that need one.
_STARTED = {RowFunction.ADD, RowFunction.NORM, RowFunction.NORM_BACK, RowFunction.GATHER}
_NEEDS_START = {RowFunction.ADD}

ROW_TABLES = {RowFunction.GATHER: "x", RowFunction.SCATTER: "target"}
"""Functions with numbers of rows, and the operand which is their table."""

ROW_USES = {
    RowFunction.ADD: {"x"}, RowFunction.SCALE: {"x", "scale", "shift"},
    RowFunction.NORM: {"x", "second", "scale", "shift", "deviation"},
    RowFunction.NORM_BACK: {"x", "y", "second", "scale", "deviation"}, RowFunction.SOFTMAX_BACK: {"x", "y"},
    RowFunction.GATHER: {"x", "y"}, RowFunction.SCATTER: {"x", "y"}, RowFunction.CLEAR: set(),
}
"""Operands that a function uses, besides its target, and ``start`` and ``third`` of one that is started."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Function of the rows of a sequence whose operands have been resolved and checked."""

    function: RowFunction
    rows: int
    columns: int
    count: int
    factor: np.float32
    epsilon: np.float32
    target: Operand
    second: Operand | None = None
    third: Operand | None = None
    deviation: Operand | None = None
    x: Operand | None = None
    y: Operand | None = None
    start: Operand | None = None
    scale: Operand | None = None
    shift: Operand | None = None

    @property
    def targets(self) -> tuple[Operand, ...]:
        found = (self.target, self.second, self.third, self.deviation if self.function is RowFunction.NORM else None)
        return tuple(one for one in found if one is not None)

    @property
    def sources(self) -> tuple[Operand, ...]:
        found = [getattr(self, name) for name in ("x", "y", "start", "scale", "shift")]
        found += [self.deviation] if self.function is RowFunction.NORM_BACK else []
        found += [self.target] if self.function is RowFunction.SCATTER else []
        return tuple(one for one in found if one is not None)

    def named(self, operand: Operand, memories: Memories) -> npt.NDArray[np.int64] | None:
        """Rows of an operand that numbers name, if it is the table."""
        name = ROW_TABLES.get(self.function)
        if name is None or self.y is None or operand is not getattr(self, name):
            return None
        numbers = memories[self.y.place][self.y.index()[:, 0]].astype(np.int64)
        return numbers[numbers < self.count]

    def run(self, memories: Memories) -> bool:
        """Run the function, and tell whether all numbers are below the count of rows of the table."""
        given = {name: operand.read(memories) for name in ("x", "y", "start", "scale", "shift", "deviation", "target")
                 if (operand := getattr(self, name)) is not None}
        with np.errstate(all="ignore"):
            found, right = self._results(given)
            if "start" in given and self.function is not RowFunction.NORM:
                found["target"] = canonical(found["target"] + given["start"])
        for name, elements in found.items():
            getattr(self, name).write(memories, elements)
        return right

    def _results(self, given: Mapping[str, Array]) -> tuple[dict[str, Array], bool]:
        """Results by the names of their targets, but for the addition of ``start``; and whether numbers are right."""
        right = True
        match self.function:
            case RowFunction.ADD:
                found = {"target": given["x"]}
            case RowFunction.SCALE:
                found = {"target": canonical(given["x"] * given["scale"] + given["shift"])}
            case RowFunction.NORM:
                x = given["x"] if self.third is None else canonical(given["start"] + given["x"])
                found = {} if self.third is None else {"third": x}
                normal, deviation = norm(x, self.epsilon, self.factor)
                found |= {"second": normal, "deviation": deviation.T,
                          "target": canonical(normal * given["scale"] + given["shift"])}
            case RowFunction.NORM_BACK:
                found = {"second": canonical(given["x"] * given["y"]), "target": norm_back(
                    given["x"], given["y"], given["deviation"].T, given["scale"], self.factor)}
            case RowFunction.SOFTMAX_BACK:
                found = {"target": softmax_back(given["x"], given["y"], self.factor)}
            case RowFunction.CLEAR:
                found = {"target": np.zeros((self.rows, self.columns), np.float32)}
            case _:
                numbers = given["y"][:, 0].view(np.uint32).astype(np.int64)
                target, right = (scatter(given["target"], numbers, given["x"])
                                 if self.function is RowFunction.SCATTER else gather(given["x"], numbers))
                found = {"target": target}
        return found, right


def rows_instruction(fields: dict[str, Any], *, size: Callable[[str], int], columns: int,
                     refuse: Callable[[object], None], operand: Callable[..., Operand]) -> Rows:
    """A checked instruction, from the fields of :func:`~hdl.features.compute.layer_list.row_layout`, without what its
    function does not use.

    ``size`` and ``operand`` give what has a name, checked, the latter from its stride, its shape and the options of
    an engine's; ``refuse`` raises an exception if its argument is true.
    """
    started = fields["started"]
    refuse(fields["reserved_0"] or fields["function"] not in list(RowFunction))
    function = RowFunction(fields["function"])
    refuse(function not in _STARTED if started else function in _NEEDS_START)
    shape = rows, width = size("rows"), size("columns")
    table = ROW_TABLES.get(function)
    count = size("count") if table else 0
    refuse(width > columns)
    shapes = {"scale": (1, width), "shift": (1, width), "deviation": (1, rows)}
    if table:
        shapes |= {table: (count, width), "y": (rows, 1)}
    targets = {"target", "second", "third"} | ({"deviation"} if function is RowFunction.NORM else set())
    used = ROW_USES[function] | {"target"} | ({"start"} if started else set())
    used |= {"third"} if started and function is RowFunction.NORM else set()
    numbers = {"y"} if table else set()
    found = {name: operand(
        name, fields.get(f"stride_{name}", 0), shapes.get(name, shape), target=name in targets,
        repeats=name in {"start", "scale", "shift", "deviation"} | numbers, inside=name in numbers)
        for name in sorted(used)}
    for name in targets & used:
        for other in used - {name}:
            same = (name in {"target", "third"} and other in {"x", "start"} and other != table and table != name
                    and found[name] == found[other])
            refuse(found[name].meets(found[other]) and not same)
    factor, epsilon = np.array([fields["factor"], fields["epsilon"]], np.uint32).view(np.float32)
    return Rows(function=function, rows=rows, columns=width, count=count, factor=factor, epsilon=epsilon, **found)
