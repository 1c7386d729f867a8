"""Time of an all-reduce on four ranks in one process: compiled, and in the golden model.

``python -m sim.bench.collectives`` prints nanoseconds per element and rank for several codecs. Both implementations
compute the same sums, residuals and traffic, including the number of nonzeros in all sums.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.arithmetic import ring
from sim.golden import ring as golden
from sim.golden.codecs import CODECS

__all__ = ["CODEC_NAMES", "GOLDEN_LENGTH", "LENGTH", "NODES", "gradients", "measure"]

#: Number of elements per rank in the compiled and in the golden all-reduce, and number of ranks.
LENGTH, GOLDEN_LENGTH, NODES = 10_000_000, 1_000_000, 4

#: Codecs in the order of the table.
CODEC_NAMES = ("raw", "zero_value", "bf16", "mx9", "mx6", "mxfp4_e2m1", "nvfp4")

#: Number of compiled runs, the fastest of which is reported; the golden model runs once.
RUNS = 3


def gradients(length: int) -> npt.NDArray[np.uint32]:
    """Gradients of all ranks as bits, of shape (NODES, length)."""
    values = np.random.default_rng(1).standard_normal((NODES, length), np.float32)
    values *= np.float32(1e-3)
    return values.view(np.uint32)


def measure(all_reduce: Callable[..., Any], name: str, values: npt.NDArray[np.uint32], *, runs: int = RUNS) -> float:
    """Nanoseconds per element and rank of the fastest of several collectives with one codec."""
    residuals = None if CODECS[name].exact else np.zeros_like(values)
    seconds = []
    for _ in range(runs):
        begun = time.perf_counter()
        all_reduce(values, gradient_codec=CODECS[name], residuals=residuals)
        seconds.append(time.perf_counter() - begun)
    return 1e9 * min(seconds) / values.size


def main(*, length: int = LENGTH, golden_length: int = GOLDEN_LENGTH) -> None:
    print(f"{'ns per element':16}{'compiled':>10}{'golden':>10}")
    values = gradients(length)
    few = np.ascontiguousarray(values[:, :golden_length])
    for name in (name for name in CODEC_NAMES if name in CODECS):
        compiled, definition = measure(ring.all_reduce, name, values), measure(golden.all_reduce, name, few, runs=1)
        print(f"{name:16}{compiled:10.1f}{definition:10.1f}", flush=True)


if __name__ == "__main__":
    main()
