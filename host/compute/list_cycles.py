"""Cycles of the instructions of a list, by the golden models of the units, whose memories never make them wait."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compute.layer_list import Place
from hdl.compute.memory_access import MemoryAccess
from host.compute.factors import Array
from sim.golden import layer_list, row_unit
from sim.golden.compute import Centroid, Gemm, Instruction, Vector
from sim.golden.gemm import GemmJob, Matrix
from sim.golden.row_cycles import RowCycles
from sim.golden.vector_cycles import VectorCycles

__all__ = ["ListCycles"]


class ListCycles:
    """Model of an engine with functions of sequences, whose products scale and mask.

    Parameters
    ----------
    length : int
        Length of the command.
    words : int
        Elements of the activation memory.
    characters : sequence of int
        Numbers that GATHER and SCATTER find; repeated ones take longer. By default all differ.
    """

    def __init__(self, array: Array, *, length: int, words: int, characters: Sequence[int] | None = None):
        self._lanes = array.lanes
        self._length = length
        self._rows = words // array.lanes
        self._characters = np.array(range(length) if characters is None else characters, np.uint32)
        self._product = dataclasses.replace(array.model, scale_mask=True)
        self._vector = VectorCycles(units=array.lanes)
        self._function = RowCycles(lanes=array.lanes)
        self._known: dict[tuple[Any, ...], int] = {}

    def instruction(self, instruction: Instruction) -> tuple[str, int]:
        """The unit of an instruction, or a part of its work, and cycles."""
        fields = layer_list.job(instruction, lanes=self._lanes, memory_rows=self._rows)
        match instruction:
            case Gemm():
                fields.pop("scale_mask")
                given: dict[str, Any] = {name: Matrix(**one) if isinstance(one, dict) else one
                                         for name, one in fields.items()}
                job = GemmJob(**given)
                key = tuple((name, one.stride > 0 if isinstance(one, Matrix) else one, getattr(one, "place", 0))
                            for name, one in vars(job).items())
                if key not in self._known:
                    self._known[key] = self._product.cycles(job)
                return "products" if job.a.place != Place.ONES else "sums", self._known[key]
            case Vector():
                softmax = instruction.labels is None
                return "softmax" if softmax else "loss", self._vector.job(
                    instruction.source.rows, instruction.source.columns, softmax=softmax)
            case Centroid():
                raise ValueError("Instruction must be one of a sequence, not of centroids")
        strides = {f"stride_{name}": one["stride"] for name, one in fields.items()
                   if isinstance(one, dict) and "stride" in one}
        known = {one.name for one in dataclasses.fields(row_unit.Job)}
        operands: dict[str, Any] = {name: (one["place"], one["row"]) if isinstance(one, dict) else one
                                    for name, one in fields.items() if name in known}
        made = row_unit.Job(**strides, **operands)
        return "rows", self._function.job(made, row_unit.run(made, self._memories(instruction)).blocks)

    def _memories(self, instruction: Any) -> list[npt.NDArray[np.uint32]]:
        """Memories of zeros, with the characters where a function of rows looks for them."""
        memories = [np.zeros((self._rows, self._lanes), np.uint32) for _ in range(3)]
        if instruction.y is not None and instruction.count:
            base = instruction.y.base
            memories[Place.ACTIVATIONS].ravel()[base:base + self._length] = self._characters
        return memories

    def walks(self, words: Sequence[npt.NDArray[np.uint32]]) -> int:
        """Cycles of a list, given with its END, beside those of its jobs."""
        return layer_list.command_cycles(list(words), self._length, lanes=self._lanes, answer=MemoryAccess.latency)
