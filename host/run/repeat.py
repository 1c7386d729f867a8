"""Compare a run with the report of an earlier run that it should reproduce."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compression.registry import ZERO_VALUE
from host.levels import levels_of_ring
from host.reports import report as steps
from host.run.sections import SCHEDULES
from host.run.spec import RunSpec, SpecError, repeatable
from host.schema import read_report

__all__ = ["check_report", "comparison", "described", "digest"]

#: Keys under which reports list their steps. Below: figures of a step to compare, keyed by label.
_STEPS = ("per_step", "updates")
_COMPARED = {"losses": ("loss",), "cycles": ("cycles", "cycle"), "words": ("words_sent",)}


def digest(*arrays: npt.NDArray[Any] | None) -> str | None:
    """Return the SHA-256 of the arrays' bits in hexadecimal, or None if an array is missing."""
    if any(array is None for array in arrays):
        return None
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def described(report: Mapping[str, Any], spec: RunSpec, *weights: npt.NDArray[Any] | None,
              cut: bool) -> dict[str, Any]:
    """Add the run's description, the weights' digest and the reproducibility levels to a report. The weights must not
    contain the padding of layers; without weights, the digest is None. The levels apply to the run's sums, and
    ``cut`` is whether layers can be summed separately with the same bits."""
    levels = levels_of_ring(spec.value("formats.gradients") or ZERO_VALUE, cut=cut,
                            microbatches=spec.value("workload.microbatches") is not None)
    return {**report, "run": repeatable(spec), "weights_sha256": digest(*weights), "levels": levels}


def check_report(path: Path) -> dict[str, Any]:
    """Read the report of a single run; raises ``SpecError`` if the file contains anything else."""
    try:
        schemas = [schedule.schema() for schedule in SCHEDULES.values()]
        report = read_report(path, steps.SCHEMA, *(schema for schema in schemas if schema is not None))
    except ValueError as error:
        raise SpecError(str(error)) from None
    rows = _steps(report)
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "loss" in row for row in rows):
        raise SpecError(f"{path} must have steps that can be compared, not be damaged or another file")
    return report


def _steps(report: Mapping[str, Any]) -> Any:
    return next((report[name] for name in _STEPS if name in report), None)


def comparison(earlier: Mapping[str, Any], result: Any) -> list[str]:
    """Describe, as lines of text, whether a run's bits, cycles and words match an earlier report. If jobs ran side by
    side, the job with the same seed is compared."""
    reports: Sequence[Mapping[str, Any]] = result if isinstance(result, list) else [result]
    report = next((other for other in reports if _seed(other) == _seed(earlier)), reports[0])
    before, after = _steps(earlier), _steps(report)
    count = min(len(before), len(after))
    lines = []
    for what, names in _COMPARED.items():
        old, new = ([[step[name] for name in names if name in step] for step in steps[:count]]
                    for steps in (before, after))
        if any(old):
            different = next((number for number in range(count) if old[number] != new[number]), None)
            lines.append(f"{what} of {count:,} steps: " + (
                "equal to those of the report" if different is None else
                f"OTHER than in the report, from step {different + 1:,} on"))
    sums = [each.get("weights_sha256") for each in (earlier, report)]
    if None in sums or len(before) != len(after):
        return [*lines, "weights: not compared, since the report is of a run that was interrupted"]
    return [*lines, f"weights: bits {'equal to' if sums[0] == sums[1] else 'OTHER than'} those of the report"]


def _seed(report: Mapping[str, Any]) -> Any:
    return report.get("training", report.get("settings", {})).get("seed")
