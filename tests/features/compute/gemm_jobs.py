"""Jobs of matrix products, drawn at random."""

from sim.golden.features.compute import gemm
from sim.golden.features.compute.gemm import GemmJob, Matrix, ScaleMask
from tests.features.compute.epilogues import draw_scale_mask
from tests.features.compute.memories import PLACES

#: Rows of each memory.
ROWS = 4096


def place(generator, lanes, *shapes):
    """Matrices of these (lines, length) anywhere in the memories, none of which overlaps another one."""
    used = {number: 0 for number in range(PLACES)}
    found = []
    for lines, length in shapes:
        number = int(generator.choice([key for key, rows in used.items() if rows < ROWS // 2]))
        stride = -(-length // lanes) + int(generator.integers(3))
        row = used[number] + int(generator.integers(4))
        used[number] = row + lines * stride
        assert used[number] <= ROWS
        found.append(Matrix(number, row, stride))
    return found


def draw_job(generator, golden, *, most):
    """A job with random sizes, legal factors, transposes, epilogues and places."""
    m, n, k = generator.integers(1, most + 1, 3).tolist()
    flags = dict(zip(("transpose_a", "transpose_b", "initial", "relu", "gated"),
                     generator.integers(2, size=5).tolist(), strict=True))
    a, b, c, start, gate = place(
        generator, golden.lanes, (k, m) if flags["transpose_a"] else (m, k),
        (n, k) if flags["transpose_b"] else (k, n), (m, n), (m, n), (m, n))
    kind = int(generator.integers(6))
    if kind == 0:
        start = Matrix(start.place, start.row, 0)
    elif kind == 1:
        start = c
    elif kind == 2:
        a = Matrix(gemm.ONES)
    elif kind == 3:
        b = Matrix(gemm.ONES)
    while True:
        job = GemmJob(
            m=m, n=n, k=k, tile=int(generator.integers(4)), row_tiles=int(generator.integers(6)),
            column_tiles=int(generator.integers(6)), rounds=int(generator.integers(10)),
            order=int(generator.integers(3)), **flags, a=a, b=b, c=c, start=start, gate=gate,
            scale_mask=draw_scale_mask(generator, m, n) if golden.scale_mask else ScaleMask())
        if golden.legal(job):
            return job
