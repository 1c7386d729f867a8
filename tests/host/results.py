"""Results of training runs, from their folders."""

import json

__all__ = ["report", "results"]

#: Figures of the time that a run took.
TIMED = ("run", "stage_seconds", "simulated_cycles_per_second")


def report(folder):
    return json.loads((folder / "report.json").read_text())


def results(folder):
    """Report but for wall times, and the file of trained weights."""
    return ({name: value for name, value in report(folder).items() if name not in TIMED},
            (folder / "weights.npz").read_bytes())
