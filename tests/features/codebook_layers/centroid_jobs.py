"""Random jobs for layers with centroid indices as weights, and their memories in numpy."""

import dataclasses

import numpy as np

from hdl.features.compute.layer_list import Place
from sim.golden.features.codebook_layers.centroid_product import index_line
from sim.golden.features.compute.compute import Centroid, Operand
from tests.features.compute.memories import PLACES
from tests.features.compute.terms import draw

#: Number of rows of each memory in these tests.
ROWS = 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class CentroidJob:
    """A centroid-layer job, described by its instruction."""

    instruction: Centroid

    def fields(self):
        op = self.instruction
        fields = {"rows": op.x.rows, "columns": op.x.columns, "outputs": op.outputs, "gradient": int(op.gradient),
                  "initial": int(op.start is not None and not op.gradient), "relu": int(op.relu),
                  "gated": int(op.gate is not None)}
        for name in ("target", "x", "indices", "start", "gate", "table"):
            operand = getattr(op, name)
            space, row, stride = (0, 0, 0) if operand is None else (
                int(operand.place), operand.base // op.lanes, operand.stride // op.lanes)
            fields[name] = {"place": space, "row": row} | ({} if name == "table" else {"stride": stride})
        return fields


def draw_job(generator, *, lanes, centroids, most=20, gradient=None, sizes=None):
    """Draw a job with random sizes and non-overlapping operands."""
    rows, columns, outputs = generator.integers(1, most + 1, 3).tolist() if sizes is None else sizes
    gradient = bool(generator.integers(2)) if gradient is None else gradient
    initial, relu, gated = (bool(choice) and not gradient for choice in generator.integers(2, size=3))
    used = {Place(number): 0 for number in range(PLACES)}

    def operand(lines, length, *, within=True, repeats=False):
        if not within:
            return None
        space = min(used, key=lambda choice: (used[choice] > ROWS // 4, generator.random()))
        stride = -(-length // lanes) + int(generator.integers(3))
        row = used[space] + int(generator.integers(3))
        used[space] = row + (lines - 1) * stride + -(-length // lanes)
        assert used[space] <= ROWS
        if repeats:
            stride = 0
        return Operand(place=space, base=row * lanes, rows=lines, columns=length, stride=stride * lanes)

    groups = -(-outputs // lanes)
    return CentroidJob(instruction=Centroid(
        target=operand(1, centroids) if gradient else operand(rows, outputs), x=operand(rows, columns),
        indices=operand(groups, index_line(columns, lanes)),
        start=operand(rows, outputs, within=gradient or initial, repeats=not gradient and generator.random() < 0.3),
        table=operand(1, centroids, within=not gradient), gate=operand(rows, outputs, within=gated),
        outputs=outputs, relu=relu, lanes=lanes, centroids=centroids))


def memories_of(generator, kind, *, lanes):
    """Fill memories of shape (rows, lanes) with random numbers that also serve as random indices."""
    return [draw(generator, kind, ROWS, lanes).astype(np.uint32) for _ in range(PLACES)]
