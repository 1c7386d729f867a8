"""Cells of the units that compute a quantised network, counted while it is measured."""

import subprocess
import sys
import threading
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
        self._lock, self._ended = threading.Lock(), False
        self._process: subprocess.Popen[str] | None = None
        self._found = {unit: self._executor.submit(self._synthesise, unit) for unit in sorted(set(units))}

    def __call__(self, unit: str) -> int | None:
        """LUT4 of a unit, once they are known; None if it could not be synthesised."""
        return self._found[unit].result()

    def known(self, unit: str) -> bool:
        """Whether a unit has been synthesised, so that nobody waits for it."""
        return self._found[unit].done()

    def close(self) -> None:
        """Begin no other, and end the one that is synthesised."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.terminate()

    def _synthesise(self, unit: str) -> int | None:
        # In a process of its own, so that several run at a time.
        name, _, option = unit.partition("-")
        options = ["--set", option] if option else []
        command = [sys.executable, "-m", "boards.synth", "--count", "--unit", name, *options]
        with self._lock:
            if self._ended:
                return None
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                             text=True)
        printed, _ = self._process.communicate()
        return int(json_files.parse_product(printed)["lut4"]) if self._process.returncode == 0 else None
