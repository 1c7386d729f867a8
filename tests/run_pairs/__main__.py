"""``make run-pairs``: training runs with random pairs of options; each runs two steps or is rejected."""

import collections
import contextlib
import io
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from host.run.defaults import with_defaults
from host.run.execution import check, train
from host.run.spec import RunSpec
from host.transports.session import TransportName
from tests.run_pairs.drawing import tried

#: Fields that have a meaning only for simulated nodes.
_SIMULATION = ("backend.transport", "backend.threads", "backend.processes", "backend.arithmetic", "backend.host_port",
               "output.check")


def _short(spec: RunSpec, folder: Path) -> RunSpec:
    """Limit a run to two steps, or a quorum run to 40,000 cycles, with all its files in ``folder``."""
    changes: dict[str, Any] = {"workload.epochs": None, "workload.steps": 2, "output.folder": folder / "run"}
    if spec.value("schedule.kind") == "quorum":
        changes = {"schedule.cycles": 40_000, "output.folder": folder / "run"}
    for name in ("output.tensorboard", "output.chakra"):
        if spec.value(name) is not None:
            changes[name] = folder / name
    return spec.replace(changes)


def _golden(values: dict[str, Any]) -> RunSpec | None:
    """Return the description of the same run on golden nodes, or None if golden nodes cannot run it."""
    spec = RunSpec().replace({name: value for name, value in values.items() if name not in _SIMULATION})
    spec = spec.replace({"backend.transport": TransportName.GOLDEN})
    try:
        check(spec)
    except ValueError:
        return None
    return spec


def _run(spec: RunSpec) -> str | None:
    """Execute a run; return the text of its error, or None."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            train(_short(spec, Path(folder)))
        except Exception as error:  # whatever the error is, only this pair has failed, and the other pairs still run
            return f"{type(error).__name__}: {error} {said.getvalue()[-200:]}"
    return None


def main(
    pairs: Annotated[int, typer.Option("--pairs", min=1, help="Number of pairs of options.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed.")] = 20,
    simulated: Annotated[int, typer.Option(
        min=0, help="Number of runs on simulated rings, among the runs that golden nodes reject.")] = 20,
) -> None:
    """Draw pairs of options, check each run, and execute valid runs for two steps."""
    counts: collections.Counter[str] = collections.Counter()
    for chosen, values, outcome in tried(seed, pairs):
        if outcome == "passed":
            spec = RunSpec().replace(dict(values))
            golden = _golden(values)
            board = with_defaults(spec).backend.transport in (TransportName.BOARD, TransportName.SERIAL)
            if golden is not None:
                error, outcome = _run(golden), "ran on golden nodes"
            elif counts["ran on simulated rings"] < simulated and not board:
                error, outcome = _run(spec), "ran on simulated rings"
            else:
                error, outcome = None, "passed the check"
            outcome = outcome if error is None else error
        known = outcome in ("refused", "ran on golden nodes", "ran on simulated rings", "passed the check")
        counts[outcome if known else "wrong"] += 1
        if not known:
            print(f"{chosen} {values}: {outcome}", flush=True)
    print(f"seed {seed}, {pairs} pairs: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    if counts["wrong"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
