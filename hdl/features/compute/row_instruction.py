"""Checks the fields and operands of a ROWS instruction, a function of a sequence's rows, and creates its job."""

from amaranth.hdl import Const, Mux
from amaranth.utils import exact_log2

from hdl.features.compute.access import place_operands
from hdl.features.compute.layer_list import RowFunction

__all__ = ["ROW_OPERANDS", "ROW_TARGETS", "ROW_USES", "STARTED", "TABLES", "row_job", "row_malformed", "row_operands"]

ROW_OPERANDS = ("target", "second", "third", "deviation", "x", "y", "start", "scale", "shift")
"""Operands in the order of their checks: the targets first."""

ROW_TARGETS = 4
"""Number of operands that can be targets; they come first."""

STARTED = (RowFunction.ADD, RowFunction.NORM, RowFunction.NORM_BACK, RowFunction.GATHER)
"""Functions that can have a ``start``; ADD must have one."""

TABLES = (RowFunction.GATHER, RowFunction.SCATTER)
"""Functions with numbers of table rows; the table is ``x`` of the first one and the target of the second one."""

ROW_USES = {
    "second": (RowFunction.NORM, RowFunction.NORM_BACK), "third": (RowFunction.NORM,),
    "deviation": (RowFunction.NORM, RowFunction.NORM_BACK),
    "x": tuple(function for function in RowFunction if function is not RowFunction.CLEAR),
    "y": (RowFunction.NORM_BACK, RowFunction.SOFTMAX_BACK, *TABLES),
    "scale": (RowFunction.SCALE, RowFunction.NORM, RowFunction.NORM_BACK),
    "shift": (RowFunction.SCALE, RowFunction.NORM),
}
"""Functions that use an operand; ``third`` is used only if there is a start; the target is always used."""

#: Number of bits that encode functions; all higher bits must be 0.
_FUNCTION_BITS = exact_log2(len(RowFunction))


def _among(instruction, functions):
    """Return whether the function of ``instruction`` is one of ``functions``."""
    mask = Const(sum(1 << function for function in functions), len(RowFunction))
    return mask.bit_select(instruction.function[:_FUNCTION_BITS], 1)


def row_malformed(instruction, sizes, large, *, columns):
    """Return whether an instruction has an error that does not depend on its operands.

    Parameters
    ----------
    instruction : row_layout()
    sizes, large : mapping of str to Value
        Sizes, and flags for sizes that are too large.
    columns : int
        Maximum number of columns.
    """
    counts = _among(instruction, TABLES) & (large["count"] | (sizes["count"] == 0))
    begins = Mux(instruction.started, ~_among(instruction, STARTED), _among(instruction, (RowFunction.ADD,)))
    return (instruction.reserved_0.any() | instruction.function[_FUNCTION_BITS:].any() | begins | counts
            | large["rows"] | large["columns"]
            | (sizes["columns"] > columns) | (sizes["rows"] == 0) | (sizes["columns"] == 0))


def row_operands(instruction, sizes):
    """Return the operands to check, in the order of :data:`ROW_OPERANDS`.

    Parameters
    ----------
    instruction, sizes
        As for :func:`row_malformed`.
    """
    rows, columns, count = sizes["rows"], sizes["columns"], sizes["count"]
    gathers, scatters, numbers = (_among(instruction, functions) for functions in (TABLES[:1], TABLES[1:], TABLES))
    vectors = ("deviation", "scale", "shift")  # operands with a single row and no stride
    heights = {**dict.fromkeys(vectors, 1), "x": Mux(gathers, count, rows), "target": Mux(scatters, count, rows)}
    widths = {"deviation": rows, "y": Mux(numbers, 1, columns)}
    used = {name: _among(instruction, functions) for name, functions in ROW_USES.items()}
    used |= {"start": instruction.started, "third": used["third"] & instruction.started}
    targets = {"target": 1, "second": 1, "third": 1, "deviation": _among(instruction, (RowFunction.NORM,))}
    checks = []
    for name in ROW_OPERANDS:
        stride = 0 if name in vectors else instruction[f"stride_{name}"]
        # `x` and `start` may share the rows of results, unless they are tables, which are read in any order.
        same, third = ((instruction[f"stride_{name}"] == instruction[f"stride_{target}"])
                       if name in ("x", "start") else 0
                       for target in ("target", "third"))
        checks.append({
            "operand": instruction[name], "rows": heights.get(name, rows), "columns": widths.get(name, columns),
            "stride": stride, "used": used.get(name, 1), "target": targets.get(name, 0),
            "free": numbers if name == "y" else 0, "ones": 0, "still": name in (*vectors, "start"),
            "same": ~numbers & same if name == "x" else same, "same_third": third})
    return checks


def row_job(m, job, instruction, sizes, bases, *, lanes):
    """Assign the job for an instruction.

    Parameters
    ----------
    job : row_job_layout(...)
    instruction, sizes
        As for :func:`row_malformed`.
    bases : sequence of Signal
        Operand addresses, in the order they are checked.
    lanes : int
    """
    lane_bits = exact_log2(lanes)
    m.d.comb += [
        *(job[name].eq(sizes[name]) for name in ("rows", "columns", "count")),
        *(job[name].eq(instruction[name]) for name in ("function", "started", "factor", "epsilon")),
        job.stride_numbers.eq(instruction.stride_y)]
    place_operands(m, job, instruction, ROW_OPERANDS, bases, lanes=lanes)
    m.d.comb += job.y_lane.eq(bases[ROW_OPERANDS.index("y")][:lane_bits])
    for name in ("x", "y", "start", "target", "second", "third"):
        m.d.comb += job[f"stride_{name}"].eq(instruction[f"stride_{name}"] >> lane_bits)
