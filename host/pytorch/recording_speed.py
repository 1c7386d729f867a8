"""Processor time of recording gradients: ``python -m host.pytorch.recording_speed`` prints it for a sampled step.

The gradients have 65,536 elements each, and belong to a run of four ranks.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from host.gradients.files import LIMIT
from host.pytorch.recording import Recorder, Source

__all__ = ["COUNTS", "main", "seconds"]

#: Numbers of parameters, and number of steps of which the median is reported.
COUNTS, STEPS = (16, 128, 1000), 9
_RANKS, _ELEMENTS = 4, 1 << 16


def seconds(count: int) -> float:
    """Median processor time of copying and writing the gradients of ``count`` parameters, in seconds."""
    gradients = [(f"layers.{index}.weight", torch.randn(_ELEMENTS)) for index in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        source = Source(Recorder(Path(folder), limit=LIMIT // _RANKS), "module0")
        times = []
        for power in range(STEPS):
            begun = time.process_time()
            source.add(1 << power, gradients, parameters=count)
            source.write(wait=True)
            times.append(time.process_time() - begun)
    return statistics.median(times)


def _lines() -> Iterator[str]:
    for count in COUNTS:
        yield f"{count:,} parameters: {1000 * seconds(count):.1f} ms of processor time in a sampled step"


def main() -> None:
    """Print the time for each number of parameters."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    print("\n".join(_lines()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
