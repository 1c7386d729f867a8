"""Compute sums for which some ranks are late on purpose: ``script.py PLAN [FOLDER]``.

With a folder, each rank writes its process ID there and then keeps computing large sums until terminated.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def delay(how, seconds):
    """Make this rank late: let it sleep, compute, or be stopped."""
    if how == "asleep":
        time.sleep(seconds)
    elif how == "busy":
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            torch.ones(64, 64) @ torch.ones(64, 64)
    else:
        with subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"]):
            os.kill(os.getpid(), signal.SIGSTOP)


dist.init_process_group()
rank = dist.get_rank()
dist.all_reduce(torch.ones(32))  # builds the ring before the first case
for case in json.loads(Path(sys.argv[1]).read_text()):
    if rank in case["late"]:
        delay(case["how"], case["seconds"])
    dist.all_reduce(torch.ones(case["elements"]))
if len(sys.argv) > 2:
    Path(sys.argv[2], f"{rank}.pid").write_text(str(os.getpid()))
    while True:
        dist.all_reduce(torch.ones(60_000))
dist.destroy_process_group()
