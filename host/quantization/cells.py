"""Cells of the units that compute a quantised network, counted while it is measured."""

import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from sim import json_files
from sim.verilated.toolchain import ROOT

__all__ = ["CellCount"]


class CellCount:
    """Synthesis of units, one after the other, beside other work.

    Parameters
    ----------
    units : iterable of str
        Names of units, as :attr:`~host.quantization.candidates.Candidate.unit` gives them.
    """

    def __init__(self, units: Iterable[str]):
        self._executor = ThreadPoolExecutor(1)
        self._found = {unit: self._executor.submit(_synthesise, unit) for unit in sorted(set(units))}

    def __call__(self, unit: str) -> int | None:
        """LUT4 of a unit, once they are known; None if it could not be synthesised."""
        return self._found[unit].result()

    def known(self, unit: str) -> bool:
        """Whether a unit has been synthesised, so that nobody waits for it."""
        return self._found[unit].done()

    def close(self) -> None:
        """Begin no other."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _synthesise(unit: str) -> int | None:
    # In a process of its own, so that several run at a time.
    name, _, option = unit.partition("-")
    options = ["--set", option] if option else []
    command = [sys.executable, "-m", "boards.synth", "--count", "--unit", name, *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return int(json_files.parse_product(ended.stdout)["lut4"]) if ended.returncode == 0 else None
