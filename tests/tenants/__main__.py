# amaranth: UnusedElaboratable=no
"""``make hostile``: many requests of a hostile tenant to one node, to two nodes, or to a worker with far memory."""

import collections
import sys
import time
from typing import Annotated

import typer

from hdl.node import Node
from sim.verilated.build import build_ring
from tests import campaign
from tests.tenants.hostile import REQUESTS, Twins, attack
from tests.tenants.moves import SERVER, WORKER, MovingTwins
from tests.tenants.rounds import QuorumTwins

#: Number of batches in a part.
_PART = 50

#: Kinds of twin rings, and the configurations of their nodes.
_KINDS = (*((kind, [kind.config] * nodes) for kind in (Twins, QuorumTwins) for nodes in (1, 2)),
          (MovingTwins, [WORKER]), (MovingTwins, [WORKER, SERVER]))


def main(
    requests: Annotated[int, typer.Option(min=1, help="Total number of requests, sent to each twin.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first part.")] = 0,
    jobs: campaign.Jobs = campaign.CORES,
) -> None:
    """Attack simulated nodes as one of two tenants, and compare twin rings."""
    began = time.monotonic()
    print("building the nodes, unless an earlier run has", flush=True)
    libraries = {config: build_ring(Node(config), identity=f"Node({config})")
                 for config in dict.fromkeys(config for _, configs in _KINDS for config in configs)}
    parts = -(-requests // (sum(len(configs) for _, configs in _KINDS) * _PART * REQUESTS))  # for each kind
    statuses: collections.Counter[str] = collections.Counter()
    sums: collections.Counter[str] = collections.Counter()
    leaks = []
    numbered = {number: _KINDS[number % len(_KINDS)] for number in range(len(_KINDS) * parts)}
    for _, result in campaign.played(jobs, attack, {
            number: ([libraries[config] for config in configs], len(configs), seed + number, _PART, kind, configs)
            for number, (kind, configs) in numbered.items()}):
        statuses.update(result["statuses"])
        sums.update({name: result[name] for name in ("requests", "commands", "refused", "guarded", "words", "batches",
                                                     "cpu_seconds")})
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
