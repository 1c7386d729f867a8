"""Read the results of training runs from their output folders."""

import json

__all__ = ["report", "results"]

#: Figures in a report that depend on wall time.
TIMED = ("run", "stage_seconds", "simulated_cycles_per_second")


def report(folder):
    return json.loads((folder / "report.json").read_text())


def results(folder):
    """The report without wall times, and the contents of the file with the trained weights."""
    return ({name: value for name, value in report(folder).items() if name not in TIMED},
            (folder / "weights.npz").read_bytes())
