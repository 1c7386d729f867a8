"""Read training results from the output folders of runs."""

import json

__all__ = ["report", "results"]

#: Fields of reports that depend on wall-clock time.
TIMED = ("run", "stage_seconds", "simulated_cycles_per_second")


def report(folder):
    return json.loads((folder / "report.json").read_text())


def results(folder):
    """Return a run's report without wall times, and the bytes of its file of trained weights."""
    return ({name: value for name, value in report(folder).items() if name not in TIMED},
            (folder / "weights.npz").read_bytes())
