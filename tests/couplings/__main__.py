# amaranth: UnusedElaboratable=no
"""``python -m tests.couplings``: pairs of invalid section values, and hashes of equal circuits."""

import random
from typing import Annotated

import typer

from tests.couplings.draw import circuit, listed, neighbours, refused, small


def main(
    circuits: Annotated[int, typer.Option(
        min=0, help="Number of random nodes; each is compared with two nodes that differ in a section.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the random nodes.")] = 0,
) -> None:
    """Print all pairs of section values that no node may have, and check that equal hashes mean equal circuits."""
    counts: dict[frozenset[str], int] = {}
    for kind, values in refused():
        counts[frozenset(values)] = counts.get(frozenset(values), 0) + 1
        print(f"{kind}: " + " and ".join(f"{name}={value!r}" for name, value in values.items()))
    print(f"{sum(counts.values())} pairs of values in {len(counts)} pairs of sections: "
          + ", ".join(sorted(" and ".join(sorted(pair)) for pair in counts)))
    pairs = listed()
    wrong = len(counts.keys() ^ pairs)
    for pair in counts.keys() ^ pairs:
        print(f"{' and '.join(sorted(pair))}: {'only' if pair in pairs else 'not'} in hdl/config/couplings.py")
    generator = random.Random(seed)
    for number in range(circuits):
        config = small(generator)
        hashes = {config.hash: circuit(config)}
        for other in neighbours(config, generator, 2):
            same, alike = other.hash == config.hash, circuit(other) == hashes[config.hash]
            wrong += same != alike
            print(f"{number}: {other}: hash {'equal' if same else 'other'}, circuit {'equal' if alike else 'other'}"
                  f"{'' if same == alike else ': WRONG'}", flush=True)
    if wrong:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
