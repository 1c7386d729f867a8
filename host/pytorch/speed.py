"""Compare the times of all-reduces with that of gloo's, for the same tensors and in the same processes.

The all-reduces are reproducible sums, and those of a ring in software with each codec.
``python -m host.pytorch.speed`` prints the figures for 10 million elements on 2 and 4 ranks, which are
processes on this machine. Sums of each kind alternate, and each figure is the median of five. Each process uses one
thread for tensor arithmetic.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdl.compression.registry import GRADIENT_CODECS
from sim import json_files

__all__ = ["measure", "rows"]

ELEMENTS, RANKS, REPETITIONS = 10_000_000, (2, 4), 5
WIDTHS = (32, 16)
#: Codecs of the ring in software.
CODECS = ("raw", "bf16", "mx9", "mx6", "mxfp4_e2m1", "nvfp4")
#: Maximum ratio of the time of an all-reduce to the time of gloo's, and that of all kinds that are not listed.
BARS, OTHER_BAR = {"raw": 1.5, "bf16": 2, "mx9": 2, "sum32": 2, "sum16": 2}, 4


def _rank(rank: int, ranks: int, store: str, elements: int) -> None:
    """Measure sums, as one rank of several. Rank 0 prints the times of each kind of sum, in seconds."""
    import torch
    import torch.distributed as dist

    from host.pytorch.reproducible.reducer import Reducer
    from host.pytorch.software.links import Links
    from host.pytorch.software.ring import RankRing

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    values = torch.randn(elements, generator=torch.Generator().manual_seed(rank))
    tensor = torch.empty(elements)
    bits, residuals = tensor.numpy().view(np.uint32), np.zeros(elements, np.uint32)
    links = Links(dist.new_group(backend="gloo")._get_backend(torch.device("cpu")), rank, ranks)

    def over_ring(ring: RankRing) -> Callable[[Any], None]:
        def all_reduce(_tensor: Any) -> None:
            links.equal(f"a sum of {elements:,} elements")
            ring.all_reduce(bits, residuals=residuals)

        return all_reduce

    kinds: dict[str, Any] = {
        "plain": dist.all_reduce, **{f"sum{width}": Reducer(width=width).all_reduce for width in WIDTHS},
        **{name: over_ring(RankRing(links, gradients=name)) for name in CODECS if name in GRADIENT_CODECS}}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(REPETITIONS + 1):  # the first sum of each kind is not counted: it allocates memory
        for kind, all_reduce in kinds.items():
            tensor.copy_(values)
            dist.barrier()
            begun = time.perf_counter()
            all_reduce(tensor)
            times[kind].append(time.perf_counter() - begun)
    if not rank:
        print(json.dumps({kind: each[1:] for kind, each in times.items()}))
    dist.barrier()
    dist.destroy_process_group()


def measure(*, elements: int = ELEMENTS, ranks: Sequence[int] = RANKS) -> dict[int, dict[str, float]]:
    """Return median times in seconds, keyed by number of ranks and kind of sum.

    Raises RuntimeError if a rank fails.
    """
    return {count: _measure(elements, count) for count in ranks}


def _measure(elements: int, ranks: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        commands = [[sys.executable, "-m", "host.pytorch.speed", "--elements", str(elements), "--rank",
                     str(rank), str(ranks), str(Path(folder, "store"))] for rank in range(ranks)]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
                     for command in commands]
        try:
            said = [process.communicate(timeout=600)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    if any(process.returncode for process in processes):
        raise RuntimeError("Ranks that measure sums failed: see the messages above")
    times: dict[str, list[float]] = json_files.parse_product(said[0])
    return {kind: statistics.median(each) for kind, each in times.items()}


def rows(figures: dict[int, dict[str, float]], *, elements: int = ELEMENTS) -> list[dict[str, Any]]:
    """Return rows for ``bench.json``: milliseconds per sum. The bound is a multiple of the time of gloo."""
    result = []
    for ranks, times in figures.items():
        for kind, seconds in times.items():
            bound = BARS.get(kind, OTHER_BAR) * times["plain"]
            if kind != "plain":
                config = f"N={ranks}, K={elements}, {seconds / times['plain']:.2f} x gloo"
                result.append({"name": f"pytorch.{kind}", "config": config, "measured": 1e3 * seconds,
                               "bound": 1e3 * bound, "ratio": seconds / bound, "unit": "ms"})
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of all-reduces, compared with that of gloo's.")
    parser.add_argument("--elements", type=int, default=ELEMENTS)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--rank", nargs=3, metavar=("RANK", "RANKS", "STORE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank, ranks, store = options.rank
        _rank(int(rank), int(ranks), store, options.elements)
        return
    for ranks, times in measure(elements=options.elements, ranks=options.ranks).items():
        print(f"{ranks} ranks, {options.elements:,} elements: " + ", ".join(
            f"{kind} {1e3 * seconds:.0f} ms ({seconds / times['plain']:.2f} x)" for kind, seconds in times.items()))


if __name__ == "__main__":
    main()
