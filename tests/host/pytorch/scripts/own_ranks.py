"""Script that starts a rank by itself; this rank waits for the other ranks in ``init_process_group()``."""

import sys
import time
from pathlib import Path

import torch.multiprocessing


def work(index, path):
    Path(path).write_text("begun")
    time.sleep(300)


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (sys.argv[1],))
