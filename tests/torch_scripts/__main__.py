"""``make torch-scripts``: random PyTorch scripts on the ring, compared with the same scripts over gloo."""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from host.pytorch.jobs import Options
from host.pytorch.launch import launch
from sim.verilated import toolchain
from sim.verilated.processes import ended_by_signals

SCRIPT = Path(__file__).with_name("script.py")

#: Number of scripts per launch, limited because each script leaves its rings open.
_SHARE = 25


def play(scripts: int, *, options: Options, seed: int, folder: Path) -> dict[str, str]:
    """Run scripts in one launch; return how each of them ended, by seed."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{seed}-{options.nodes}-{options.gradients}.json"
    launch([str(SCRIPT), str(seed), str(scripts), str(file)], options)
    ends: dict[str, str] = json.loads(file.read_text())
    return ends


def main(
    scripts: Annotated[int, typer.Option(min=1, help="Total number of scripts.")] = 300,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks.")] = "2,4",
    gradients: Annotated[str, typer.Option(help="Codecs for gradients.")] = "raw,mx9",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first script.")] = 0,
) -> None:
    """Play random scripts and compare their weights with gloo's."""
    began, left = time.monotonic(), scripts
    kinds = [(int(count), codec) for count in ranks.split(",") for codec in gradients.split(",")]
    counts: dict[tuple[int, str], Counter[str]] = {kind: Counter() for kind in kinds}
    wrong = {}
    with ended_by_signals():
        while left:
            kind = kinds[((scripts - left) // _SHARE) % len(kinds)]
            share = min(_SHARE, left)
            for number, end in play(share, options=Options(nodes=kind[0], gradients=kind[1]),
                                    seed=seed + scripts - left, folder=toolchain.BUILD / "torch-scripts").items():
                counts[kind][end.partition(":")[0].split()[0]] += 1
                if not end.startswith(("equal", "refused")):
                    wrong[number] = end
                    print(f"script {number} with {kind[0]} ranks and {kind[1]}: {end}", flush=True)
            left -= share
            print(f"{scripts - left} of {scripts} scripts", flush=True)
    table = Table("ranks", "gradients", "equal to gloo", "refused on all ranks", "wrong", title="random scripts")
    for (count, codec), ends in counts.items():
        table.add_row(str(count), codec, *(str(ends[name]) for name in ("equal", "refused", "wrong")))
    Console().print(table)
    print(f"{scripts} scripts from seed {seed}, {time.monotonic() - began:.0f} s: {len(wrong)} wrong; one again: "
          f"SCRIPTS=1 RANKS= GRADIENTS= SEED=")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    typer.run(main)
