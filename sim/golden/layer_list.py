"""Golden model of the lists of LAYERS: what is wrong with an instruction, the jobs that they make, and the cycles.

Mirrors :mod:`hdl.compute.instruction_reader`, :mod:`hdl.compute.instruction_checker` and
:mod:`hdl.compute.list_runner`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from hdl.compute.layer_list import (
    INSTRUCTION_WORDS,
    MOST_INSTRUCTIONS,
    Initial,
    Kind,
    Place,
    VectorProgram,
    gemm_layout,
    instruction_layout,
    vector_layout,
)
from sim.golden import loop_nest
from sim.payload import from_int

__all__ = ["Checked", "Command", "Fault", "Lists", "Operand", "listed_instructions"]

_MOST = 4_095
_FACTORS = {"tile": 3, "row_tiles": 7, "column_tiles": 7, "rounds": 15}


class Fault(Exception):
    """Wrong instruction, with its number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"instruction {number}")
        self.number = number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Fields of a command that its list depends on."""

    list_base: int
    state_base: int
    length: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operand:
    """Operand of an instruction: a matrix of rows of elements, its memory, address and stride.

    Members
    -------
    free : bool
        Whether it may have any address and stride.
    """

    name: str
    place: int
    base: int
    rows: int
    columns: int
    stride: int
    used: bool = True
    free: bool = False

    @property
    def end(self) -> int:
        """Address behind the last element."""
        return self.base + (self.rows - 1) * self.stride + self.columns

    def overlaps(self, other: "Operand") -> bool:
        """Whether two operands have room in common."""
        return self.place == other.place and self.base < other.end and other.base < self.end


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """Verdict on an instruction: its kind, the number at fault or None, and the cycles to the verdict."""

    kind: int
    fault: int | None
    cycles: int


def listed_instructions(memory: Sequence[int], base: int) -> list[int]:
    """Instructions from an address on, as bits, to the first END; all that there are if there is none."""
    found: list[int] = []
    while len(found) < MOST_INSTRUCTIONS and base + INSTRUCTION_WORDS <= len(memory):
        found.append(sum(int(word) << 32 * place
                         for place, word in enumerate(memory[base:base + INSTRUCTION_WORDS])))
        base += INSTRUCTION_WORDS
        if from_int(instruction_layout(), found[-1])["kind"] == Kind.END:
            break
    return found


def _size(field: int, length: int) -> int:
    return field or length


def _reserved(fields: dict[str, Any]) -> bool:
    return any(value for name, value in fields.items() if name.startswith("reserved"))


@dataclasses.dataclass(kw_only=True)
class Lists:
    """Lists of a node.

    Parameters
    ----------
    words : tuple of int
        Elements of the memories of gradients, of weights and of activations.
    lanes, rows, blocks : int
        Elements of a memory row, rows of the array, blocks of its panels.
    """

    words: tuple[int, int, int]
    lanes: int
    rows: int
    blocks: int = 128

    def fields(self, bits: int) -> dict[str, Any]:
        """Fields of an instruction."""
        kind = from_int(instruction_layout(), bits)["kind"]
        return from_int({Kind.GEMM: gemm_layout(), Kind.VECTOR: vector_layout()}.get(kind, instruction_layout()),
                        bits)

    def operands(self, fields: dict[str, Any], command: Command) -> list[Operand]:
        """Operands in the order of their checks."""
        if fields["kind"] == Kind.GEMM:
            m, k, n = (_size(fields[name], command.length) for name in "mkn")
            shapes = {"c": (m, n), "a": (k, m) if fields["transpose_a"] else (m, k),
                      "b": (n, k) if fields["transpose_b"] else (k, n), "start": (m, n), "gate": (m, n)}
            used = {"start": fields["initial"] == Initial.MATRIX, "gate": bool(fields["gated"])}
        else:
            rows = _size(fields["rows"], command.length)
            shapes = {"target": (rows, fields["columns"]), "loss": (1, 1), "source": (rows, fields["columns"]),
                      "labels": (rows, 1)}
            used = {}
        return [Operand(
            name=name, place=fields[name]["place"], rows=shape[0], columns=shape[1],
            base=fields[name]["base"] + fields[name]["relative"] * command.state_base,
            stride=fields.get(f"stride_{name}", 0), used=used.get(name, True), free=name in ("loss", "labels"))
            for name, shape in shapes.items()]

    def _malformed(self, fields: dict[str, Any], command: Command) -> bool:
        """Whether something is wrong with a product or function that does not depend on its operands."""
        if fields["kind"] == Kind.VECTOR:
            sizes = _size(fields["rows"], command.length), fields["columns"]
            return (_reserved(fields) or fields["function"] not in list(VectorProgram)
                    or not all(1 <= size <= _MOST for size in sizes))
        sizes = tuple(_size(fields[name], command.length) for name in "mkn")
        if (_reserved(fields) or fields["scaled"] or fields["masked"] or fields["format"]
                or fields["initial"] not in list(Initial) or not all(1 <= size <= _MOST for size in sizes)
                or any(fields[name] > most for name, most in _FACTORS.items())):
            return True
        job = loop_nest.Job(m=sizes[0], k=sizes[1], n=sizes[2], order=fields["order"],
                            **{name: fields[name] for name in _FACTORS})
        return not loop_nest.LoopNest(rows=self.rows, lanes=self.lanes, blocks=self.blocks).legal(job)

    def _wrong(self, operand: Operand, before: Sequence[Operand]) -> bool:
        """Whether an operand is wrong, beside the targets that were checked before."""
        is_target = operand.name in ("c", "target", "loss")
        if operand.place > Place.ACTIVATIONS or (is_target and operand.place == Place.WEIGHTS):
            return True
        still = operand.name == "start" and operand.stride == 0
        if not operand.free and (operand.base % self.lanes or operand.stride % self.lanes
                                 or (operand.stride < operand.columns and not still)):
            return True
        return operand.end > self.words[operand.place] or any(
            operand.overlaps(target) and not (operand.name == "start" and (operand.base, operand.stride) == (
                target.base, target.stride)) for target in before)

    def check(self, instructions: Sequence[int], command: Command) -> list[Checked]:
        """Verdicts on the instructions of a list, up to the first wrong one."""
        found: list[Checked] = []
        lowest: tuple[int, int] | None = None  # address of a target, and number of its instruction
        for number, bits in enumerate(instructions):
            fields = self.fields(bits)
            wrong, cycles, kind = False, 1, fields["kind"]
            fault = number
            if kind == Kind.END:
                wrong, cycles = bits != 0, 2
                end = command.list_base + INSTRUCTION_WORDS * (number + 1)
                if lowest is not None and lowest[0] < end:
                    wrong, fault = True, lowest[1]
            elif kind in (Kind.GEMM, Kind.VECTOR):
                wrong = self._malformed(fields, command)
                targets: list[Operand] = []
                for operand in self.operands(fields, command):
                    constant = operand.name in ("a", "b") and operand.place == Place.ONES
                    if not operand.used or constant:
                        cycles += 1
                        continue
                    cycles += 3 + max(1, ((operand.rows - 1) % (_MOST + 1)).bit_length())
                    wrong = wrong or self._wrong(operand, targets)
                    if operand.name in ("c", "target", "loss"):
                        targets.append(operand)
                        if (operand.place == Place.ACTIVATIONS and operand.end > command.list_base
                                and (lowest is None or operand.base < lowest[0])):
                            lowest = operand.base, number
            else:
                wrong = True
            found.append(Checked(kind=kind, fault=fault if wrong else None, cycles=cycles))
            if wrong:
                break
        return found

    def verdict(self, memory: Sequence[int], command: Command) -> int:
        """Count of the instructions of a list, its END not counted; raises :class:`Fault` for a wrong one."""
        instructions = listed_instructions(memory, command.list_base)
        checked = self.check(instructions, command)
        if checked and checked[-1].fault is not None:
            raise Fault(checked[-1].fault)
        if not checked or checked[-1].kind != Kind.END:
            raise Fault(len(instructions))
        return len(instructions) - 1

    def job(self, bits: int, command: Command) -> dict[str, Any]:
        """Job of a valid instruction, as its unit takes it."""
        fields = self.fields(bits)
        operands = self.operands(fields, command)
        made: dict[str, Any] = {}
        if fields["kind"] == Kind.GEMM:
            made |= {name: _size(fields[name], command.length) for name in "mkn"}
            made |= {name: fields[name] for name in (*_FACTORS, "order", "transpose_a", "transpose_b", "initial",
                                                     "relu", "gated")}
        else:
            made |= {"function": fields["function"], "rows": _size(fields["rows"], command.length),
                     "columns": fields["columns"]}
        for operand in operands:
            if not operand.used:
                continue
            if operand.place == Place.ONES:
                made[operand.name] = {"place": operand.place}
                continue
            made[operand.name] = {"place": operand.place, "row": operand.base // self.lanes}
            if operand.free:
                made[f"{operand.name}_lane"] = operand.base % self.lanes
            if operand.name != "loss":
                made[f"stride_{operand.name}"] = operand.stride // (1 if operand.free else self.lanes)
        return made

    def job_cycles(self, bits: int) -> int:
        """Cycles from an instruction to its job, without a check."""
        return {Kind.GEMM: 6, Kind.VECTOR: 5, Kind.END: 2}[self.fields(bits)["kind"]]

    def read_cycles(self, answer: int) -> int:
        """Cycles from ``start``, or from taking an instruction, to the offer of the next one.

        Parameters
        ----------
        answer : int
            Cycles from a request to its answer.
        """
        return INSTRUCTION_WORDS // self.lanes + 2 + answer
