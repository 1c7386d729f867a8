"""Print a Markdown table of the additional cycles that steps take after a resume, compared to an uninterrupted run.

    python -m tests.host.training.resumed

trains each configuration and resumes it from each of its checkpoints.
"""

import itertools
import json
import shutil
import sys
import tempfile
from pathlib import Path

from host import cli
from host.features.quorum import run as quorum
from host.training import checkpoint
from tests.host.rings import CONFIGS

_DIGITS = ("--threads", "1", "--steps", "4", "--checkpoint", "1")
_PLAIN = (*_DIGITS, "--nodes", "3", "--hidden", "none", "--batch", "500")
RUNS = {
    "digits, four nodes": _DIGITS,
    "digits, no hidden layer, three nodes": _PLAIN,
    "the same with `--host-port`": (*_PLAIN, "--host-port"),
    "the same with `--density 0.3`": (*_PLAIN, "--density", "0.3"),
    "[rounds](late.md) with a straggler of factor 3": (
        "--straggler", "3:3", "--skew", "0.9", "--hidden", "8", "--batch", "4", "--macs", "1", "--cycles", "60000",
        "--seed", "3", "--threads", "1", "--checkpoint", "2"),
}


def train(folder, *options):
    """Run ``gradring train`` and return the cycles of each step or quorum update."""
    sys.argv = ["gradring", "train", *options, "--output", str(folder)]
    try:
        cli.main()
    except SystemExit as error:
        if error.code:
            raise
    report = json.loads((folder / "report.json").read_text())
    if "per_step" in report:
        return [step["cycles"] for step in report["per_step"]]
    ends = [0, *(update["cycle"] for update in report["updates"])]
    return [after - before for before, after in itertools.pairwise(ends)]


def differences(folder, options):
    """Resume from each checkpoint except the last one; return each resumed run's difference in total cycles."""
    save, kept = checkpoint.save, []

    def keep(path, identity, content):
        save(path, identity, content)
        kept.append(folder / f"{len(kept)}.tar")
        shutil.copy(path, kept[-1])

    checkpoint.save = keep
    whole = train(folder / "whole", *options)
    checkpoint.save = save
    for path in kept[:-1]:
        (folder / path.stem).mkdir()
        shutil.copy(path, folder / path.stem / checkpoint.NAME)
        again = train(folder / path.stem, *options, "--resume")
        yield [after - before for before, after in zip(whole, again, strict=True)]


def main():
    quorum.NodeConfig = lambda **options: CONFIGS["wide"]  # same nodes as in other tests
    lines = ["| run | differences |", "|---|---|"]
    for name, options in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            values = [value for row in differences(Path(folder), options) for value in row]
        lines.append(f"| {name} | {min(values)} to {max(values)} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
