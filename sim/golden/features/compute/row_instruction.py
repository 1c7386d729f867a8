"""Golden model of the ROWS instruction: operands, checks and effect.

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
"""Operands in the order of their checks: targets first."""

#: Functions that accept a ``start``, and functions that require it.
_STARTED = {RowFunction.ADD, RowFunction.NORM, RowFunction.NORM_BACK, RowFunction.GATHER}
_NEEDS_START = {RowFunction.ADD}

ROW_TABLES = {RowFunction.GATHER: "x", RowFunction.SCATTER: "target"}
"""Functions that read row numbers, each with the operand from which the numbers select rows."""

ROW_USES = {
    RowFunction.ADD: {"x"}, RowFunction.SCALE: {"x", "scale", "shift"},
    RowFunction.NORM: {"x", "second", "scale", "shift", "deviation"},
    RowFunction.NORM_BACK: {"x", "y", "second", "scale", "deviation"}, RowFunction.SOFTMAX_BACK: {"x", "y"},
    RowFunction.GATHER: {"x", "y"}, RowFunction.SCATTER: {"x", "y"}, RowFunction.CLEAR: set(),
}
"""Operands that a function uses, other than its target and, if it has a start, ``start`` and ``third``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Function applied to the rows of a sequence, with resolved and checked operands."""

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
        items = (self.target, self.second, self.third, self.deviation if self.function is RowFunction.NORM else None)
        return tuple(item for item in items if item is not None)

    @property
    def sources(self) -> tuple[Operand, ...]:
        operands = [getattr(self, name) for name in ("x", "y", "start", "scale", "shift")]
        operands += [self.deviation] if self.function is RowFunction.NORM_BACK else []
        operands += [self.target] if self.function is RowFunction.SCATTER else []
        return tuple(operand for operand in operands if operand is not None)

    def named(self, operand: Operand, memories: Memories) -> npt.NDArray[np.int64] | None:
        """Table rows selected by the instruction's row numbers, or None if the operand is not a table."""
        name = ROW_TABLES.get(self.function)
        if name is None or self.y is None or operand is not getattr(self, name):
            return None
        numbers = memories[self.y.place][self.y.index()[:, 0]].astype(np.int64)
        return numbers[numbers < self.count]

    def run(self, memories: Memories) -> bool:
        """Run the function; return whether all row numbers are less than the table's row count."""
        data = {name: operand.read(memories) for name in ("x", "y", "start", "scale", "shift", "deviation", "target")
                if (operand := getattr(self, name)) is not None}
        with np.errstate(all="ignore"):
            results, right = self._results(data)
            if "start" in data and self.function is not RowFunction.NORM:
                results["target"] = canonical(results["target"] + data["start"])
        for name, elements in results.items():
            getattr(self, name).write(memories, elements)
        return right

    def _results(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], bool]:
        """Results keyed by target, before ``start`` is added; and whether the row numbers in ``y`` are valid."""
        right = True
        match self.function:
            case RowFunction.ADD:
                results = {"target": inputs["x"]}
            case RowFunction.SCALE:
                results = {"target": canonical(inputs["x"] * inputs["scale"] + inputs["shift"])}
            case RowFunction.NORM:
                x = inputs["x"] if self.third is None else canonical(inputs["start"] + inputs["x"])
                results = {} if self.third is None else {"third": x}
                normal, deviation = norm(x, self.epsilon, self.factor)
                results |= {"second": normal, "deviation": deviation.T,
                            "target": canonical(normal * inputs["scale"] + inputs["shift"])}
            case RowFunction.NORM_BACK:
                results = {"second": canonical(inputs["x"] * inputs["y"]), "target": norm_back(
                    inputs["x"], inputs["y"], inputs["deviation"].T, inputs["scale"], self.factor)}
            case RowFunction.SOFTMAX_BACK:
                results = {"target": softmax_back(inputs["x"], inputs["y"], self.factor)}
            case RowFunction.CLEAR:
                results = {"target": np.zeros((self.rows, self.columns), np.float32)}
            case _:
                numbers = inputs["y"][:, 0].view(np.uint32).astype(np.int64)
                target, right = (scatter(inputs["target"], numbers, inputs["x"])
                                 if self.function is RowFunction.SCATTER else gather(inputs["x"], numbers))
                results = {"target": target}
        return results, right


def rows_instruction(fields: dict[str, Any], *, size: Callable[[str], int], columns: int,
                     refuse: Callable[[object], None], operand: Callable[..., Operand]) -> Rows:
    """Check an instruction and resolve its operands, dropping fields that its function does not use.

    ``fields`` are the fields of :func:`~hdl.features.compute.layer_list.row_layout`. ``size`` checks and returns the
    size with a given name; ``operand`` does the same for an operand, given its name, stride, shape and options;
    ``refuse`` raises an exception if its argument is true.
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
    operands = {name: operand(
        name, fields.get(f"stride_{name}", 0), shapes.get(name, shape), target=name in targets,
        repeats=name in {"start", "scale", "shift", "deviation"} | numbers, inside=name in numbers)
        for name in sorted(used)}
    for name in targets & used:
        for other in used - {name}:
            same = (name in {"target", "third"} and other in {"x", "start"} and other != table and table != name
                    and operands[name] == operands[other])
            refuse(operands[name].meets(operands[other]) and not same)
    factor, epsilon = np.array([fields["factor"], fields["epsilon"]], np.uint32).view(np.float32)
    return Rows(function=function, rows=rows, columns=width, count=count, factor=factor, epsilon=epsilon, **operands)
