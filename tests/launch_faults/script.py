"""Compute sums, while one rank may send wrong bytes: ``script.py FOLDER SUMS KIND RANK STEP SEED``.

Each rank writes its process ID to the folder before the first sum, and creates the file ``amid`` when sum number STEP
begins.
"""

import os
import random
import sys
import time
from pathlib import Path

import numpy as np

from host.pytorch.client import client
from host.pytorch.messages import MESSAGES, AllReduce

#: Numbers of elements per sum, for messages that are shorter and longer than one socket call accepts.
SIZES = (5, 3000, 100_000)


def misbehave(kind, request, generator):
    """Send wrong bytes or an incomplete message, and keep the connection open."""
    frame = MESSAGES.encode(request)
    connection = client()._connection._socket
    if kind == "own garbage":
        connection.sendall(generator.randbytes(100))
    else:
        connection.sendall(frame[:generator.randrange(1, len(frame))])
    time.sleep(600)


def main(folder, sums, kind, rank, step, seed):
    folder, own, ranks = Path(folder), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    client().join(own, ranks, 1800)
    part = folder / f"{own}.new"
    part.write_text(str(os.getpid()))
    part.rename(folder / f"{own}.pid")
    while not all((folder / f"{other}.pid").exists() for other in range(ranks)):
        time.sleep(0.01)
    generator = random.Random(seed)
    for number in range(int(sums)):
        request = AllReduce(values=np.full(generator.choice(SIZES), own + 1, np.float32))
        if number == int(step):
            (folder / "amid").touch()
            if own == int(rank) and kind.startswith("own"):
                misbehave(kind, request, generator)
        total = client().ask(request)
        assert (total == ranks * (ranks + 1) // 2).all()
        time.sleep(0.002)


main(*sys.argv[1:])
