# amaranth: UnusedElaboratable=no
"""``make hostile``: many requests of a hostile tenant, on one node and on rings of two."""

import collections
import concurrent.futures
import multiprocessing
import os
import sys
import time
from typing import Annotated

import typer

from hdl.node import Node
from sim.verilated.build import build_ring
from tests.tenants.hostile import REQUESTS, Twins, attack
from tests.tenants.rounds import RoundTwins

#: Batches of a part.
_PART = 50


def main(
    requests: Annotated[int, typer.Option(min=1, help="Requests in all; each twin gets every one.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first part.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
) -> None:
    """Attack simulated nodes as one of two tenants, and compare twins."""
    began = time.monotonic()
    print("building the rings, unless an earlier run has", flush=True)
    kinds = {kind: build_ring(Node(kind.config), identity=f"Node({kind.config})") for kind in (Twins, RoundTwins)}
    parts = -(-requests // (3 * len(kinds) * _PART * REQUESTS))  # of one node and of two
    statuses: collections.Counter[str] = collections.Counter()
    sums: collections.Counter[str] = collections.Counter()
    leaks = []
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = [pool.submit(attack, library, nodes, seed + 2 * part + nodes - 1, _PART, kind)
                   for part in range(parts) for kind, library in kinds.items() for nodes in (1, 2)]
        for done in concurrent.futures.as_completed(waiting):
            result = done.result()
            statuses.update(result["statuses"])
            sums.update({name: result[name] for name in ("requests", "commands", "refused", "guarded", "words",
                                                         "batches", "cpu_seconds")})
            leaks += [result["leak"]] if result["leak"] else []
            print(f"{result['nodes']} nodes, seed {result['seed']}: {result['leak'] or 'no leak'}", flush=True)
    print(f"{sums['requests']:,} requests, {sums['commands']:,} of them commands and programs, {sums['refused']:,} "
          f"refused, {sums['batches']:,} twins, {sums['guarded']:,} commands stopped by a guard, {sums['words']:,} "
          f"words outside compared, {len(leaks)} leaks, {sums['cpu_seconds']:.0f} CPU s, "
          f"{time.monotonic() - began:.0f} s")
    print(", ".join(f"{name} {count:,}" for name, count in statuses.most_common()))
    if leaks:
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
