"""Make the recorded gradients in this folder: ``python -m host.labs.formats.record`` writes digits.npz and text.npz.

It trains the models of :mod:`host.labs.formats.models` on four ranks with a ring in software, which takes a minute
on two cores, and keeps one run of each parameter in three steps. It needs PyTorch. Bits of gradients depend on the
version of PyTorch and on the processor.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from host.gradients.files import merge
from host.pytorch.messages import RECORD

__all__ = ["FOLDER", "NAMES", "RANKS", "STEPS", "main"]

#: Folder of the files, and their names.
FOLDER, NAMES = Path(__file__).parent, ("digits", "text")
#: Number of ranks, and steps that are kept.
RANKS, STEPS = 4, (1, 16, 256)


def main(folder: Path = FOLDER) -> None:
    """Record the gradients of both models and write the files to a folder."""
    for name in NAMES:
        with tempfile.TemporaryDirectory() as recorded:
            subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                            str(RANKS), "-m", "host.labs.formats.models", name], check=True,
                           env={**os.environ, RECORD: recorded, "OMP_NUM_THREADS": "1"})
            merge(Path(recorded), folder / f"{name}.npz", steps=STEPS, runs=1)


if __name__ == "__main__":
    main()
