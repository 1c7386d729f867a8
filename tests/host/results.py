"""Results of training runs, from their folders."""

import json

__all__ = ["report", "results"]

#: Figures that depend on wall time.
TIMED = ("run", "stage_seconds", "simulated_cycles_per_second")


def report(folder):
    return json.loads((folder / "report.json").read_text())


def results(folder):
    """Report without wall times, and the file of trained weights."""
    return ({name: value for name, value in report(folder).items() if name not in TIMED},
            (folder / "weights.npz").read_bytes())
