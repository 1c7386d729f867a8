"""Compare the times of reproducible sums and plain gloo sums, for the same tensors and in the same processes.

``python -m host.pytorch.reproducible.speed`` prints the figures for 10 million elements on 2 and 4 ranks, which are
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim import json_files

__all__ = ["measure", "rows"]

ELEMENTS, RANKS, REPETITIONS = 10_000_000, (2, 4), 5
#: Maximum ratio of the time of a reproducible sum to the time of a plain sum.
BAR = 2
WIDTHS = (32, 16)


def _rank(rank: int, ranks: int, store: str, elements: int) -> None:
    """Measure sums as one of the ranks. Rank 0 prints the times of each kind of sum, in seconds."""
    import torch
    import torch.distributed as dist

    from host.pytorch.reproducible.reducer import Reducer

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    values = torch.randn(elements, generator=torch.Generator().manual_seed(rank))
    tensor = torch.empty(elements)
    kinds: dict[str, Any] = {"plain": dist.all_reduce, **{
        f"sum{width}": Reducer(width=width).all_reduce for width in WIDTHS}}
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
        commands = [[sys.executable, "-m", "host.pytorch.reproducible.speed", "--elements", str(elements), "--rank",
                     str(rank), str(ranks), str(Path(folder, "store"))] for rank in range(ranks)]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
                     for command in commands]
        try:
            said = [process.communicate(timeout=600)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    if any(process.returncode for process in processes):
        raise RuntimeError("Ranks that measure reproducible sums failed: see the messages above")
    times: dict[str, list[float]] = json_files.parse_product(said[0])
    return {kind: statistics.median(each) for kind, each in times.items()}


def rows(figures: dict[int, dict[str, float]], *, elements: int = ELEMENTS) -> list[dict[str, Any]]:
    """Return rows for ``bench.json``: milliseconds per sum. The bound is :data:`BAR` times the time of gloo."""
    return [{"name": f"pytorch.{kind}", "config": f"N={ranks}, K={elements}, {seconds / times['plain']:.2f} x gloo",
             "measured": 1e3 * seconds, "bound": 1e3 * BAR * times["plain"],
             "ratio": seconds / (BAR * times["plain"]), "unit": "ms"}
            for ranks, times in figures.items() for kind, seconds in times.items() if kind != "plain"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of reproducible sums, compared with ordinary sums over gloo.")
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
