"""``make messages``: messages of 64 words over seven hops of a ring of nodes, during dense fused updates."""

import time
from typing import Annotated

import numpy as np
import typer

from hdl.features.slots.layouts import MESSAGE_CYCLES, MESSAGE_WORDS
from tests.messages.measure import LATENCY, MOST, NODES, beside_updates, open_nodes

#: Number of elements in an update, and number of updates for each seed.
_LENGTH, _UPDATES = 16_384, 5
#: Latency in cycles that each hop adds to a control word, not counting the wires: docs/ring/link.md.
_CONTROL_HOP = 8


def main(
    messages: Annotated[int, typer.Option(min=1, help="Minimum number of messages.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Send messages while nodes update weights (one node starts 5,000 cycles late), and print the cycles."""
    began, taken, updates, superframes, restarts = time.process_time(), [], [], set(), 0
    with open_nodes() as (ring, simulation):
        while len(taken) < messages:
            result = beside_updates(ring, simulation, updates=_UPDATES, length=_LENGTH, seed=[seed, len(taken)])
            taken += result.taken
            updates += result.updates
            superframes |= result.superframes
            restarts += result.restarts
        quiet = beside_updates(ring, simulation, updates=_UPDATES, length=_LENGTH, seed=[seed, 0], on=False).updates
        cycles = simulation.cycle
    longest, mean = max(superframes, default=0), np.mean(updates[:len(quiet)])
    print(f"{len(taken):,} messages in {cycles:,} cycles, each right and each in the cycle that the table names: "
          f"{min(taken):,} to {max(taken):,} cycles, {np.mean(taken):,.0f} on average; at most {MOST:,} are allowed")
    print(f"{len(updates):,} fused updates of {_LENGTH:,} elements beside them, bit for bit the golden model's, take "
          f"{np.mean(updates):,.0f} cycles; the first {len(quiet)} {mean:,.0f}, without messages "
          f"{np.mean(quiet):,.0f}: {100 * (mean / np.mean(quiet) - 1):+.1f} %")
    print(f"{restarts} links restarted")
    print(f"superframes of 15 slots take up to {longest:,} cycles, {longest - 4 * MESSAGE_CYCLES:,} without slots "
          f"for messages: {100 * (longest / (longest - 4 * MESSAGE_CYCLES) - 1):.1f} % more")
    print(f"{MESSAGE_WORDS} control words over {NODES - 1} hops on links of credits, modelled: "
          f"{(NODES - 1) * (LATENCY + _CONTROL_HOP) + MESSAGE_WORDS} cycles")
    print(f"{time.process_time() - began:.0f} s of processor time")
    if max(taken) > MOST:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
