# amaranth: UnusedElaboratable=no
"""Bitstream of a board, and the cells that it uses on the board's chip.

Run as ``make synth BOARD=ulx3s-85f``, or ``python -m boards.bitstream --board ulx3s-85f``. See docs/boards.md.

A bitstream is written only if the design fits and meets the board's clock: placements with seeds 1, 2, … are tried,
and the first placement that meets the clock becomes the bitstream.
"""

import argparse
import dataclasses
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from boards import dsp_registers as registers
from boards.command_line import finish
from boards.parts import count_parts, part_lines
from boards.tools import (
    MAX_SEEDS,
    RESULTS,
    Family,
    SynthesisError,
    Tools,
    execute,
    kept,
    prepare,
    read_results,
    save,
)
from boards.top import Top
from hdl.board import BoardTop
from hdl.config.forms import as_dict
from hdl.ring.ports import link_signature, wires_per_link
from sim import json_files
from sim.verilated import toolchain

try:
    from boards.boards import BOARDS, Board, board
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    sys.exit(f"error: {missing.name.partition('.')[0]} must be installed to make bitstreams: run 'make .venv/.synth' "
             f"or 'make setup'")

__all__ = ["ATTEMPTS", "Plan", "build", "plan", "program", "steps", "table"]

#: Maximum number of placements, unless more are requested.
ATTEMPTS = 5

_TOP = "top"


@dataclasses.dataclass(frozen=True)
class Plan:
    """Files that Amaranth generates for a design on a board.

    Parameters
    ----------
    design : str
        Design in Yosys's own language (RTLIL).
    constraints : str
        Pin and clock constraints, for the file named in :attr:`place`.
    place, pack : list of str
        Arguments for nextpnr and for the packer.
    """

    design: str
    constraints: str
    place: list[str]
    pack: list[str]


def plan(wired: Board, top: Top) -> Plan:
    """Generate a board's files with Amaranth, and return the files that :func:`build` needs."""
    files = wired.platform().prepare(top, _TOP, emit_src=False).files
    script = json_files.parse_product(files[f"build_{_TOP}.json"])
    commands = {program: arguments for program, *arguments in script["commands"]}
    return Plan(files[f"{_TOP}.il"], files[_TOP + wired.family.constraints], commands[wired.family.nextpnr],
                commands[wired.family.packer])


def build(name: str, *, seeds: int = 1, native: bool = False, progress: Callable[[str], None] = lambda text: None,
          design=None) -> dict:
    """Build the bitstream of a board and the report ``build/synth/<name>.json``.

    Parameters
    ----------
    name : str
        A key of :data:`boards.boards.BOARDS`.
    seeds : int
        Number of placements for the table of speeds. If none meets the clock, more are tried, up to ATTEMPTS.
    native : bool
        Whether to use the tools found on PATH.
    progress : callable
        Called with a line of text when a stage starts and when a placement has reached a speed.
    design : Component or None
        Design to build instead of the board's own nodes and link.
    """
    wired, config = board(name)
    if not 1 <= seeds <= MAX_SEEDS:
        raise SynthesisError(f"Seed count must be a positive integer of at most {MAX_SEEDS:,}, not {seeds!r}")
    tools = Tools(family=wired.family, native=native, pack=True)
    prepare(RESULTS)
    if design is None:
        design = BoardTop(config=config.node, nodes=config.nodes, clock=config.clock, baud=config.baud)
    progress(f"{name}: design")
    made = plan(wired, Top(board=wired, clock=config.clock, design=design))
    key = toolchain.digest(made.design, repr(wired.family.dense), repr(tools.versions),
                           toolchain.source(_synthesise, steps), registers.SOURCE if wired.dsp_registers else "")
    unit = f"{name}-{key}"
    progress(f"{name}: synthesis")
    netlist = toolchain.cached(kept(unit), lambda fresh: _synthesise(fresh, made.design, tools, wired))
    product = f"{_TOP}{wired.family.bitstream}"
    bitstream, written = RESULTS / f"{name}{wired.family.bitstream}", RESULTS / f"{name}.json"
    for earlier in (bitstream, written):
        earlier.unlink(missing_ok=True)  # an old bitstream must not remain if this build fails
    reached, chosen = [], None
    for seed in range(1, max(seeds, ATTEMPTS) + 1):
        if seed > seeds and chosen is not None:
            break
        progress(f"{name}: placement with seed {seed}")
        folder = _placement(unit, netlist, made, tools, name, wired, config.clock, seed)
        report = json_files.read_product(folder / "report.json")
        reached.append(_fmax(report, config.clock))
        met = (folder / product).exists()
        progress(f"{name}: seed {seed} reaches {reached[-1]:.2f} MHz of {config.clock / 1e6:g} MHz"
                 + ("" if met else ", which is too slow"))
        if met and chosen is None:
            chosen = seed, folder, report
    if chosen is None:
        missing = config.clock / 1e6 - max(reached)
        raise SynthesisError(f"{name} needs {config.clock / 1e6:g} MHz, and the best of {len(reached)} placements is "
                             f"{missing:.2f} MHz below it, at {max(reached):.2f} MHz; there is no bitstream")
    seed, folder, report = chosen
    shutil.copyfile(folder / product, bitstream)
    statistic = json_files.read_product(netlist / "stat.json")
    result = {
        "name": name,
        "board": name,
        "part": wired.part,
        "tools": tools.versions,
        "nodes": config.nodes,
        "wires_per_link": list(wires_per_link(link_signature(config.node))),
        "configuration": as_dict(config.node),
        "configuration_hash": config.node.hash,
        "baud": config.baud,
        **wired.family.count(statistic["design"]["num_cells_by_type"]),
        "utilisation": {bel: figures for bel, figures in report["utilization"].items() if figures["used"]},
        "clock_mhz": config.clock / 1e6,
        "fmax_mhz": {"median": round(statistics.median(reached), 2), "min": round(min(reached), 2),
                     "max": round(max(reached), 2)},
        "placements": [{"seed": n, "fmax_mhz": round(fmax, 2)} for n, fmax in enumerate(reached, 1)],
        "seeds": len(reached),
        "seed": seed,
        "bitstream": bitstream.name,
        "units": count_parts(netlist / f"{_TOP}.json", _TOP, wired.family),
    }
    save(written, json.dumps(result, indent=2) + "\n")
    return result


def steps(family: Family, top: str) -> list[str]:
    """Yosys commands that map an RTLIL design to cells."""
    # Yosys honours no_rw_check (nothing depends on a read during a write) only if it merges a register into the read
    # port. Otherwise, each block memory gets flip-flops and LUTs for every bit, to keep the old row.
    return ["memory_nordff", *(step.format(top=top) for step in family.dense)]


def _synthesise(folder: Path, design: str, tools: Tools, wired: Board):
    (folder / f"{_TOP}.il").write_text(design)
    script = [f"read_rtlil {_TOP}.il", *steps(wired.family, _TOP),
              f"tee -q -o stat.json stat -json -top {_TOP}", f"write_json {_TOP}.json"]
    execute([*tools.yosys, "-q", "-l", "yosys.log", "-p", "; ".join(script)], folder, f"{_TOP}.json", "yosys.log")
    if wired.dsp_registers:
        registers.rewrite(folder / f"{_TOP}.json", _TOP, folder / "stat.json")


def _placement(unit: str, netlist: Path, made: Plan, tools: Tools, name: str, wired: Board, clock: int,
               seed: int) -> Path:
    """Place with one seed, or reuse a placement; return the folder with the report and bitstream, if any."""
    # The design's clock is derived from its PLL; --freq is for clocks without a constraint.
    arguments = [*made.place, *wired.family.placing, "--report", "report.json", "--seed", str(seed),
                 "--freq", f"{clock / 1e6:g}"]

    def place(fresh: Path):
        shutil.copyfile(netlist / f"{_TOP}.json", fresh / f"{_TOP}.json")
        (fresh / f"{_TOP}{wired.family.constraints}").write_text(made.constraints)
        report, log = fresh / "report.json", fresh / f"{_TOP}.tim"
        try:
            execute([*tools.nextpnr, *arguments], fresh, report.name, log.name)
        except SynthesisError:
            full = _full(log.read_text(errors="replace") if log.exists() else "")
            if full:
                raise SynthesisError(f"{name} does not fit its {wired.part}: {full}") from None
            # nextpnr reports a missed clock as an error, too, but still writes a report.
            if not report.exists() or not _missed(json_files.read_product(report)):
                raise
        else:
            execute([*tools.packer, *made.pack], fresh, f"{_TOP}{wired.family.bitstream}", log.name)
        (fresh / f"{_TOP}.json").unlink()

    key = toolchain.digest(made.constraints, repr(arguments), repr(made.pack), repr(tools.versions),
                           toolchain.source(_placement))
    return toolchain.cached(kept(f"{unit}-{key}-{seed}"), place)


def _full(log: str) -> str:
    """List the resources that the chip lacks; empty if placement failed for another reason."""
    used = {site: (int(needed), int(present)) for site, needed, present in re.findall(
        r"^Info:\s+(\w+):\s+(\d+)/\s*(\d+)\s+\d+%", log, flags=re.MULTILINE) if int(present)}
    # On an almost full chip, some cells may have no legal site left.
    least = 0.9 if "Unable to find legal placement" in log else 1.0
    return ", ".join(f"{needed:,} {site} of {present:,}" for site, (needed, present) in used.items()
                     if needed > least * present)


def _missed(report: dict) -> bool:
    return any(clock["achieved"] < clock["constraint"] for clock in report["fmax"].values())


def _fmax(report: dict, clock: int) -> float:
    """Frequency in MHz that the design's clock reaches."""
    # The report should always contain this clock, which nextpnr derives from the reference and the PLL's dividers.
    ours = [row for row in report["fmax"].values() if abs(row["constraint"] / (clock / 1e6) - 1) < 1e-3]
    if not ours:
        raise SynthesisError(f"Report must have a clock of {clock / 1e6:g} MHz, not "
                             + (", ".join(f"{row['constraint']:g} MHz" for row in report["fmax"].values()) or "none"))
    return min(row["achieved"] for row in ours)


def table() -> str:
    """Results of all boards, as a Markdown table."""
    lines = ["| Board | Part | Nodes | Link wires | LUT4 | LUTs | FF | DSP | block RAM | Clock MHz "
             "| Fmax MHz: median (range) | Seeds |",
             "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for row in read_results(RESULTS, boards=True):
        if row["board"] not in BOARDS:
            continue
        figures = [f"{used['used']:,} of {used['available']:,}" if (used := row["utilisation"].get(bel)) else "0"
                   for bel in BOARDS[row["board"]].family.sites]
        fmax, wires = row["fmax_mhz"], " + ".join(map(str, row.get("wires_per_link", ["-"])))
        lines.append(f"| {row['name']} | {row['part']} | {row['nodes']} | {wires} | {row['lut4']:,} | "
                     f"{' | '.join(figures)} | "
                     f"{row['clock_mhz']:g} | {fmax['median']:.1f} ({fmax['min']:.1f} to {fmax['max']:.1f}) | "
                     f"{row['seeds']} |")
    return "\n".join(lines)


def program(name: str, bitstream: Path, *, cable: str | None = None):
    """Load a bitstream into a board with openFPGALoader.

    Parameters
    ----------
    name : str
        A key of :data:`boards.boards.BOARDS`.
    bitstream : Path
    cable : str or None
        Adapter to use instead of the one on the board.
    """
    wired, _ = board(name)
    chosen = os.environ.get("OPENFPGALOADER", "openFPGALoader")
    loader = shutil.which(chosen)
    if loader is None:
        raise SynthesisError(f"{chosen} is needed to program a board and is not on PATH; install it, for example "
                             f"with 'apt-get install openfpgaloader', or name it in the environment variable "
                             f"OPENFPGALOADER; the bitstream is {os.path.relpath(bitstream)}")
    adapter = cable or wired.cable
    command = [loader, "--board", wired.loader, *(["--cable", adapter] if adapter else []), str(bitstream)]
    status = subprocess.run(command).returncode
    if status:
        raise SynthesisError(f"{' '.join(command)} failed with exit code {status}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and run the command."""
    parser = argparse.ArgumentParser(prog="python -m boards.bitstream", description=__doc__.partition("\n")[0])
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--board", help="board for which to build a bitstream")
    chosen.add_argument("--list", action="store_true", help="show the names of all boards")
    chosen.add_argument("--table", action="store_true", help="show all earlier results as a table")
    parser.add_argument("--seeds", type=int, default=1,
                        help=f"number of placements; if none meets the clock, more are tried, up to {ATTEMPTS}")
    parser.add_argument("--native", action="store_true", help="use yosys, nextpnr and the packer on PATH")
    parser.add_argument("--program", action="store_true", help="load the bitstream into the board")
    parser.add_argument("--cable", help="adapter for openFPGALoader, if it is not the board's own")
    values = parser.parse_args(arguments)

    def work() -> None:
        if values.list:
            print("\n".join(BOARDS))
        elif values.table:
            print(table())
        else:
            result = build(values.board, seeds=values.seeds, native=values.native,
                           progress=lambda text: print(text, file=sys.stderr))
            _print(result)
            if values.program:
                program(values.board, RESULTS / result["bitstream"], cable=values.cable)

    return finish(work)


def _print(result: dict):
    fmax = result["fmax_mhz"]
    print(f"{result['name']}: {result['nodes']} {'node' if result['nodes'] == 1 else 'nodes'} on {result['part']}, "
          f"{result['tools']['yosys']}, {result['tools']['nextpnr']}")
    print(f"  wires per link: {' + '.join(map(str, result['wires_per_link']))}")
    for bel, figures in result["utilisation"].items():
        print(f"  {bel:<18} {figures['used']:7,} of {figures['available']:7,}  "
              f"{figures['used'] / figures['available']:4.0%}")
    print(f"  clock {result['clock_mhz']:g} MHz; Fmax {fmax['median']} MHz median of {result['seeds']} seeds, "
          f"{fmax['min']} to {fmax['max']}; the bitstream is of seed {result['seed']}")
    print("LUT4 by part:")
    print("\n".join(part_lines(result["units"], "lut4")))
    print(os.path.relpath(RESULTS / result["bitstream"]))


if __name__ == "__main__":
    sys.exit(main())
