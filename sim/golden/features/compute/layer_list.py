"""Golden model of the two passes over a LAYERS list: the instructions' jobs and the cycle counts.

The validity checks of a list are in :mod:`sim.golden.features.compute.compute`. Mirrors
:mod:`hdl.features.compute.instruction_reader`, :mod:`hdl.features.compute.instruction_checker` and
:mod:`hdl.features.compute.list_runner`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.features.compute.layer_list import (
    INSTRUCTION_WORDS,
    Initial,
    Kind,
    Place,
    RowFunction,
    VectorProgram,
    centroid_layout,
    gemm_layout,
    row_layout,
    vector_layout,
)
from sim.golden.features.compute.compute import Centroid, Instruction, Operand, Vector, unpack
from sim.golden.features.compute.gemm import scale_mask_fields
from sim.golden.features.compute.row_instruction import ROW_OPERANDS, ROW_TABLES, ROW_USES, Rows

__all__ = ["check_cycles", "command_cycles", "job", "job_cycles", "read_cycles"]

Bits = npt.NDArray[np.uint32]

#: Cycles to resolve an operand, and cycles to resolve and compare an operand, excluding multiplications.
_RESOLVED, _COMPARED = 1, 3
#: Cycles before the first operand, and cycles of an END instruction.
_BEGIN, _END = 1, 2


def _kind(words: Bits) -> int:
    return int(words[0]) & 15


def _heights(fields: dict[str, Any], length: int) -> list[int | None]:
    """Row counts of the operands of a ROWS instruction. An unknown function is decoded by its low bits."""
    function, started = RowFunction(fields["function"] % len(RowFunction)), fields["started"]
    rows, count = fields["rows"] or length, fields["count"] or length
    heights = dict.fromkeys(ROW_OPERANDS, rows) | dict.fromkeys(("deviation", "scale", "shift"), 1)
    heights |= {ROW_TABLES[function]: count} if function in ROW_TABLES else {}
    used = ROW_USES[function] | {"target"} | ({"start"} if started else set())
    used |= {"third"} if started and function is RowFunction.NORM else set()
    return [heights[name] if name in used else None for name in ROW_OPERANDS]


def _operand_rows(words: Bits, length: int, lanes: int, sequences: bool) -> list[int | None]:
    """Row counts of an instruction's operands in the order of their checks; None for unchecked operands."""
    if _kind(words) == Kind.CENTROID:
        fields = unpack(centroid_layout(), words)
        gradient, rows, outputs = fields["gradient"], fields["rows"] or length, fields["outputs"] or length
        return [1 if gradient else rows, rows, -(-(outputs % (1 << 12)) // lanes),
                rows if gradient or fields["initial"] else None, None if gradient else 1,
                rows if fields["gated"] else None]
    if _kind(words) == Kind.ROWS:
        return _heights(unpack(row_layout(), words), length)
    if _kind(words) == Kind.VECTOR:
        vector = unpack(vector_layout(), words)
        rows = vector["rows"] or length
        labelled = not sequences or vector["function"] != VectorProgram.SOFTMAX
        return [rows, 1 if labelled else None, rows, rows if labelled else None]
    fields = unpack(gemm_layout(), words)
    m, k, n = (fields[name] or length for name in "mkn")
    ones = {name: fields[name]["place"] == Place.ONES for name in "ab"}
    return [m, None if ones["a"] else k if fields["transpose_a"] else m,
            None if ones["b"] else n if fields["transpose_b"] else k,
            m if fields["initial"] == Initial.MATRIX else None, m if fields["gated"] else None]


def check_cycles(words: Bits, length: int, *, lanes: int, centroids: int = 0, sequences: bool = False) -> int:
    """Latency in cycles of checking an instruction in a command of ``length`` rows. ``centroids`` is the table size,
    or 0 without tables; ``sequences`` enables sequence functions."""
    if _kind(words) == Kind.END:
        return _END
    if _kind(words) not in (Kind.GEMM, Kind.VECTOR, *((Kind.CENTROID,) if centroids else ()),
                            *((Kind.ROWS,) if sequences else ())):
        return _BEGIN
    products = [rows if rows is None else max(1, ((rows - 1) % (1 << 12)).bit_length())
                for rows in _operand_rows(words, length, lanes, sequences)]
    return _BEGIN + sum(_RESOLVED if bits is None else _COMPARED + bits for bits in products)


def job_cycles(words: Bits) -> int:
    """Latency in cycles from an instruction to its job in the second pass."""
    cycles: dict[int, int] = {Kind.END: _END, Kind.GEMM: _BEGIN + 5 * _RESOLVED, Kind.VECTOR: _BEGIN + 4 * _RESOLVED,
                              Kind.CENTROID: _BEGIN + 6 * _RESOLVED,
                              Kind.ROWS: _BEGIN + len(ROW_OPERANDS) * _RESOLVED}
    return cycles[_kind(words)]


def read_cycles(*, lanes: int, answer: int) -> int:
    """Latency in cycles from the start, or from accepting an instruction, until the next one is offered. Reads are
    issued in consecutive cycles; each is answered ``answer`` cycles later."""
    return int(INSTRUCTION_WORDS) // lanes + 2 + answer


def command_cycles(instructions: list[Bits], length: int, *, lanes: int, answer: int, centroids: int = 0,
                   sequences: bool = False) -> int:
    """Cycles of a LAYERS command excluding its jobs, if memory ports never stall. The list includes its END. The
    remaining parameters are as in :func:`check_cycles` and :func:`read_cycles`."""
    walks = sum(2 * read_cycles(lanes=lanes, answer=answer) + job_cycles(words)
                + check_cycles(words, length, lanes=lanes, centroids=centroids, sequences=sequences)
                for words in instructions)
    return walks + 3


def _place(operand: Operand, lanes: int, *, owners: bool) -> dict[str, int]:
    return {"place": _memory(operand, owners=owners), "row": operand.base // lanes}


def _memory(operand: Operand, *, owners: bool) -> int:
    """Memory number of an operand; with buffer tags, the upper bits are its buffer number."""
    return int(operand.place) | owners * operand.owner << 2


def _centroid_job(instruction: Centroid, *, owners: bool) -> dict[str, Any]:
    gradient, lanes = instruction.gradient, instruction.lanes
    made: dict[str, Any] = {
        "rows": instruction.x.rows, "columns": instruction.x.columns, "outputs": instruction.outputs,
        "gradient": int(gradient), "initial": int(instruction.start is not None and not gradient),
        "relu": int(instruction.relu), "gated": int(instruction.gate is not None)}
    for name in ("target", "x", "indices", "start", "table", "gate"):
        operand = getattr(instruction, name)
        if operand is not None:
            made[name] = _place(operand, lanes, owners=owners)
            if not (name == "table" or (name == "target" and gradient)):
                made[name]["stride"] = operand.stride // lanes
    return made


def _row_job(instruction: Rows, lanes: int, *, owners: bool) -> dict[str, Any]:
    function, started = instruction.function, instruction.start is not None
    made: dict[str, Any] = {"function": int(function), "started": int(started), "rows": instruction.rows,
                            "columns": instruction.columns}
    for name in ROW_OPERANDS:
        operand = getattr(instruction, name)
        if operand is not None:
            made[name] = _place(operand, lanes, owners=owners)
            if name not in ("scale", "shift", "deviation"):
                made[f"stride_{name}"] = operand.stride // lanes
    numbers = instruction.y
    if numbers is not None and function in (RowFunction.GATHER, RowFunction.SCATTER):
        made |= {"count": instruction.count, "y_lane": numbers.base % lanes, "stride_numbers": numbers.stride}
        del made["stride_y"]
    if function in (RowFunction.NORM, RowFunction.NORM_BACK, RowFunction.SOFTMAX_BACK):
        made["factor"] = int(instruction.factor.view(np.uint32))
    if function is RowFunction.NORM:
        made["epsilon"] = int(instruction.epsilon.view(np.uint32))
    return made


def job(instruction: Instruction, *, lanes: int, memory_rows: int, owners: bool = False) -> dict[str, Any]:
    """Job that a unit receives for an instruction, with or without buffer tags (``owners``). Unused fields are
    omitted."""
    if isinstance(instruction, Centroid):
        return _centroid_job(instruction, owners=owners)
    if isinstance(instruction, Rows):
        return _row_job(instruction, lanes, owners=owners)
    if isinstance(instruction, Vector):
        source, target, labels, loss = (getattr(instruction, name) for name in ("source", "target", "labels", "loss"))
        function = VectorProgram.SOFTMAX if labels is None else VectorProgram.CROSS_ENTROPY
        places = {name: _place(operand, lanes, owners=owners) for name, operand in (
            ("source", source), ("target", target), ("labels", labels), ("loss", loss)) if operand is not None}
        made = {"function": int(function), "rows": source.rows, "columns": source.columns, **places,
                "stride_source": source.stride // lanes, "stride_target": target.stride // lanes}
        if labels is None:
            return made
        return made | {"labels_lane": labels.base % lanes, "stride_labels": labels.stride,
                       "loss_lane": loss.base % lanes}
    made = {name: getattr(instruction.job, name)
                            for name in ("m", "n", "k", "tile", "row_tiles", "column_tiles", "rounds", "order")}
    made |= {"transpose_a": int(instruction.transpose_a), "transpose_b": int(instruction.transpose_b),
             "initial": int(instruction.start is not None), "relu": int(instruction.relu),
             "gated": int(instruction.gate is not None), "scale_mask": scale_mask_fields(instruction.scale_mask)}
    for name in ("a", "b", "c", "start", "gate"):
        operand = getattr(instruction, name)
        if operand is not None and operand.place is Place.ONES:
            made[name] = {"place": _memory(operand, owners=owners)}
        elif operand is not None:
            made[name] = {**_place(operand, lanes, owners=owners), "stride": operand.stride // lanes % (
                1 << (memory_rows - 1).bit_length())}
    return made
