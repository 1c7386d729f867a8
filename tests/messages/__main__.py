"""``make messages``: messages of 64 words over seven hops of a ring whose slots are full of packets."""

import time
from typing import Annotated

import numpy as np
import typer

from hdl.ring.slots.layouts import MESSAGE_CYCLES
from tests.messages.measure import MOST, measure, ring, start


def main(
    messages: Annotated[int, typer.Option(min=1, help="Messages.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Send messages, with a node that stalls for 5,000 cycles among every 100, and print their cycles."""
    began, unit = time.monotonic(), ring("-O1")
    start(unit)
    taken, superframes, words, cycles = [], set(), 0, 0
    for part, first in enumerate(range(0, messages, 100)):
        times = measure(unit, count=min(100, messages - first), seed=[seed, part])
        taken += times.taken
        superframes |= times.superframes
        words, cycles = words + times.words, cycles + times.cycles
    longest = max(superframes, default=0)
    print(f"{len(taken):,} messages in {cycles:,} cycles, each word right and each in the cycle that the table "
          f"names: {min(taken):,} to {max(taken):,} cycles, {np.mean(taken):,.0f} on average; at most {MOST:,} are "
          f"allowed")
    print(f"{words:,} words of packets came to the last rank; superframes of 16 slots take up to {longest:,} cycles, "
          f"{longest - 4 * MESSAGE_CYCLES:,} without slots for messages: "
          f"{100 * (longest / (longest - 4 * MESSAGE_CYCLES) - 1):.1f} % more")
    print(f"{time.monotonic() - began:.0f} s")
    if max(taken) > MOST:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
