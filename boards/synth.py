# amaranth: UnusedElaboratable=no
"""Area and speed of one unit, placed and routed out of context on a given ECP5 part.

Run as ``python -m boards.synth --unit floating.add --seeds 3``. docs/synthesis.md lists the cells that are counted,
and docs/decisions/synthesis-tools.md gives the reasons for these tools and settings.

The unit is synthesised and counted on its own, without a wrapper. For placement it is then wrapped: every input bit
comes from a flip-flop of a shift register and every output bit goes to its own flip-flop; a chain of flip-flops and
exclusive-ors folds these into one pin. Three pins are therefore sufficient, no pin is part of a timing path, and none
of the unit's logic is optimised away.
"""

import argparse
import dataclasses
import json
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from boards import dsp_registers as registers
from boards.command_line import finish
from boards.parts import count_parts, part_lines
from boards.tools import (
    ECP5,
    MAX_SEEDS,
    RESULTS,
    SynthesisError,
    Tools,
    execute,
    kept,
    prepare,
    read_results,
    save,
)
from boards.units import UNITS
from hdl.choices import choice_error
from hdl.ring.ports import wires_per_link
from sim import json_files
from sim.verilated import toolchain
from sim.verilated.verilog import Design, convert

__all__ = ["MAPPERS", "Part", "count", "measure", "table", "wrapper"]

DEFAULT_PART = "LFE5U-85F-6"
DEFAULT_MAPPER = "abc9"
#: Names of the wrapper's flip-flops, which are not part of the unit.
HARNESS = re.compile(r"(feed|kept|chain)_\d+")
#: Maximum target clock, in MHz.
MAX_MHZ = 10_000


@dataclasses.dataclass(frozen=True)
class Part:
    """A Lattice ECP5 part such as LFE5U-85F-6, split into family, size and speed grade."""

    name: str

    _FAMILIES = {"LFE5U": "", "LFE5UM": "um-", "LFE5UM5G": "um5g-"}

    def __post_init__(self):
        if self._match is None:
            raise SynthesisError(f"Part must be of the form LFE5U-85F-6 (LFE5U, LFE5UM or LFE5UM5G; 12F, 25F, 45F or "
                                 f"85F; speed 6, 7 or 8), not {self.name!r}")

    @property
    def _match(self):
        return re.fullmatch(r"(LFE5U|LFE5UM|LFE5UM5G)-(12|25|45|85)F-([678])", self.name)

    @property
    def options(self):
        """Command-line options that select this part in nextpnr-ecp5."""
        family, size, speed = self._match.groups()
        return [f"--{self._FAMILIES[family]}{size}k", "--speed", speed, "--package", "CABGA381"]


#: Methods of mapping logic to LUTs, as lists of Yosys commands keyed by name.
MAPPERS = {
    "abc9": ECP5.mapping,
    "dense": ECP5.dense,
    "abc": ["synth_ecp5 -top {top} -noabc9"],
}


def wrapper(design: Design) -> str:
    """Verilog of module ``wrapper``, which places the unit between flip-flops; see the module docstring."""
    flip_flop = 'TRELLIS_FF #(.GSR("DISABLED"), .CEMUX("1"), .CLKMUX("CLK"), .LSRMUX("LSR"), .REGSET("RESET"))'
    inputs = [port for port in design.ports if port.is_input and port.name != "clk"]
    outputs = [port for port in design.ports if not port.is_input]
    fed, read = sum(port.width for port in inputs), sum(port.width for port in outputs)
    lines = [
        "module wrapper(input clk, input shift_i, output shift_o);",
        f"  wire [{fed}:0] feed; wire [{read - 1}:0] result, kept, fold; wire [{read}:0] chain;",
        "  assign feed[0] = shift_i; assign chain[0] = 1'b0;",
    ]
    rest = ".CLK(clk), .LSR(1'b0)"
    exclusive_or = "LUT4 #(.INIT(16'h6666))"
    for n in range(fed):
        lines.append(f"  {flip_flop} feed_{n} ({rest}, .DI(feed[{n}]), .Q(feed[{n + 1}]));")
    for n in range(read):
        lines += [f"  {flip_flop} kept_{n} ({rest}, .DI(result[{n}]), .Q(kept[{n}]));",
                  f"  {exclusive_or} fold_{n} (.A(chain[{n}]), .B(kept[{n}]), .C(1'b0), .D(1'b0), .Z(fold[{n}]));",
                  f"  {flip_flop} chain_{n} ({rest}, .DI(fold[{n}]), .Q(chain[{n + 1}]));"]
    lines += [f"  assign shift_o = chain[{read}];", f"  {design.name} unit ("]
    connections = [".clk(clk)"] if design.clocked else []
    for vector, ports, start in (("feed", inputs, 1), ("result", outputs, 0)):
        for port in ports:
            connections.append(f".{port.name}({vector}[{start + port.width - 1}:{start}])")
            start += port.width
    return "\n".join([*lines, ",\n".join(f"    {connection}" for connection in connections), "  );", "endmodule", ""])


def _synthesise(folder: Path, design: Design, tools: Tools, mapper: str, dsp_registers: bool = False):
    (folder / "unit.v").write_text(design.text)
    (folder / "wrapper.v").write_text(wrapper(design))
    script = ["read_verilog unit.v", *(step.format(top=design.name) for step in MAPPERS[mapper]),
              f"tee -q -o stat.json stat -json -top {design.name}",
              "read_verilog wrapper.v", "hierarchy -check -top wrapper", "flatten", "opt_clean",
              "write_json wrapper.json"]
    execute([*tools.yosys, "-q", "-l", "yosys.log", "-p", "; ".join(script)], folder, "wrapper.json", "yosys.log")
    if dsp_registers:
        registers.rewrite(folder / "wrapper.json", "wrapper", folder / "stat.json", stays=HARNESS)


def _place(folder: Path, netlist: Path, tools: Tools, part: Part, frequency: float, seed: int):
    shutil.copyfile(netlist, folder / "wrapper.json")
    # Without --timing-allow-fail, missing the target would look like a failure; the report shows if it was met.
    execute([*tools.nextpnr, *part.options, "--json", "wrapper.json", "--report", "report.json", "-q",
              "-l", "nextpnr.log", "--seed", str(seed), "--freq", f"{frequency:g}", "--timing-allow-fail",
              "--lpf-allow-unconstrained"], folder, "report.json", "nextpnr.log")


def _check(name: str, mapper: str):
    if name not in UNITS:
        raise SynthesisError(choice_error("Unit", sorted(UNITS), name, listed="`python -m boards.verilog --list`"))
    if mapper not in MAPPERS:
        raise SynthesisError(choice_error("Mapper", MAPPERS, mapper))


def _netlist(name: str, options: dict, part: str, tools: Tools, mapper: str, dsp_registers: bool,
             progress: Callable[[str], None]) -> tuple[str, str, Path]:
    """Synthesise a unit; return its result name, its name in the cache and the folder of the netlist."""
    component = UNITS[name].component(options)
    progress(f"{name}: Verilog")
    design = convert(component, name=re.sub(r"\W", "_", name))
    settings = {**options, **({"part": part} if part != DEFAULT_PART else {}),
                **({"mapper": mapper} if mapper != DEFAULT_MAPPER else {}),
                **({"dsp_registers": 1} if dsp_registers else {})}
    label = "-".join([name, *(f"{key}={value}" for key, value in sorted(settings.items()))])
    key = toolchain.digest(design.name, design.text, wrapper(design), repr(MAPPERS[mapper]), repr(tools.versions),
                           toolchain.source(_synthesise, _place),
                           registers.SOURCE if dsp_registers else "")
    unit = f"{name}-{key}"
    progress(f"{label}: synthesis")
    netlist = toolchain.cached(kept(unit), lambda fresh: _synthesise(fresh, design, tools, mapper, dsp_registers))
    return label, unit, netlist


def _wires(name: str, options: dict) -> dict:
    """Number of forward and backward wires per link, for results of units that have links."""
    members = UNITS[name].component(options).signature.members
    return {"wires_per_link": list(wires_per_link(members["ring_o"].signature))} if "ring_o" in members else {}


def _cells(netlist: Path) -> dict:
    statistic = json_files.read_product(netlist / "stat.json")
    return ECP5.count(statistic["design"]["num_cells_by_type"])


def count(name: str, *, options: dict | None = None, native: bool = False, mapper: str = DEFAULT_MAPPER,
          dsp_registers: bool = False, breakdown: bool = False,
          progress: Callable[[str], None] = lambda text: None) -> dict:
    """Synthesise one unit and count its cells, without placement or a result file.

    With ``breakdown``, ``progress`` reports the LUTs of each part. See :func:`measure` for the other parameters.
    """
    _check(name, mapper)
    label, _, netlist = _netlist(name, options or {}, DEFAULT_PART, Tools(native=native), mapper, dsp_registers,
                                 progress)
    if breakdown:
        counts = count_parts(netlist / "wrapper.json", "wrapper", ECP5)
        progress("\n".join([f"{label}: LUTs by part, those of carry cells and LUT memories among them",
                            *part_lines(counts, "lut4_occupied", whole="unit")]))
    return {"name": label, **_cells(netlist), **_wires(name, options or {})}


def measure(name: str, *, options: dict | None = None, part: str = DEFAULT_PART, seeds: int = 3,
            frequency: float = 120.0, native: bool = False, mapper: str = DEFAULT_MAPPER,
            dsp_registers: bool = False, path: bool = False,
            progress: Callable[[str], None] = lambda text: None) -> dict:
    """Synthesise and place one unit, and write ``build/synth/<name>.json``.

    The result is named after the unit and the parameters that differ from the defaults, for example
    ``floating.multiply-dsps=2``.

    Parameters
    ----------
    name : str
        A key of :data:`boards.units.UNITS`.
    options : dict or None
        Unit parameters, which override those in its entry.
    part : str
        Name of the part, including the speed grade.
    seeds : int
        Number of placements, which use seeds 1, 2, ….
    frequency : float
        Target frequency for nextpnr in MHz. Missing the target is not an error, but the result shows it.
    native : bool
        Whether to use the tools on PATH.
    mapper : str
        A key of :data:`MAPPERS`.
    dsp_registers : bool
        Whether to move flip-flops around products into the DSP blocks; see :mod:`boards.dsp_registers`.
    path : bool
        Whether ``progress`` also reports each placement's critical path.
    progress : callable
        Called with a line of text when a stage begins, and with the speed of each placement.
    """
    _check(name, mapper)
    if not 1 <= seeds <= MAX_SEEDS:
        raise SynthesisError(f"Seed count must be a positive integer of at most {MAX_SEEDS:,}, not {seeds!r}")
    if not 0 < frequency <= MAX_MHZ:
        raise SynthesisError(f"Target must be above 0 and at most {MAX_MHZ:,} MHz, not {frequency!r}")
    chip, tools = Part(part), Tools(native=native)
    prepare(RESULTS)
    label, unit, netlist = _netlist(name, options or {}, part, tools, mapper, dsp_registers, progress)
    reached = []
    for seed in range(1, seeds + 1):
        progress(f"{label}: placement with seed {seed} of {seeds}")
        folder = toolchain.cached(
            kept(f"{unit}-{part}-{frequency:g}-{seed}"),
            lambda fresh, seed=seed: _place(fresh, netlist / "wrapper.json", tools, chip, frequency, seed))
        report = json_files.read_product(folder / "report.json")
        reached.append(_fmax(report))
        progress(f"{label}: seed {seed} reaches {reached[-1]:.2f} MHz" + (_path(report) if path else ""))
    result = {
        "name": label,
        "part": part,
        "tools": {**tools.versions, "mapper": mapper},
        **_cells(netlist),
        **_wires(name, options or {}),
        "fmax_mhz": {"median": round(statistics.median(reached), 2), "min": round(min(reached), 2),
                     "max": round(max(reached), 2)},
        "seeds": seeds,
        "target_mhz": frequency,
        "seeds_below_target": sum(fmax < frequency for fmax in reached),
    }
    save(RESULTS / f"{label}.json", json.dumps(result, indent=2) + "\n")
    return result


def table() -> str:
    """All results in ``build/synth`` as a Markdown table."""
    lines = ["| Unit | Part | LUT4 | CCU2C | LUT RAM | FF | DSP | BRAM | Link wires | Fmax MHz: median (range) "
             "| Seeds |",
             "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for row in read_results(RESULTS, boards=False):
        fmax = row["fmax_mhz"]
        counts = " | ".join(str(row[name]) for name in ("lut4", "ccu2c", "lut_ram", "ff", "dsp", "bram"))
        wires = " + ".join(map(str, row.get("wires_per_link", ["-"])))
        lines.append(f"| {row['name']} | {row['part']} | {counts} | {wires} | {fmax['median']:.0f} "
                     f"({fmax['min']:.0f} to {fmax['max']:.0f}) | {row['seeds']} |")
    return "\n".join(lines)


def _fmax(report: dict) -> float:
    clocks = report.get("fmax", {})
    if len(clocks) != 1:
        raise SynthesisError(f"Report must be of one clock, not of {len(clocks)}: {', '.join(clocks)}")
    return next(iter(clocks.values()))["achieved"]


def _path(report: dict) -> str:
    """Longest path from clock edge to clock edge, with one line per cell and net."""
    paths = [path for path in report["critical_paths"] if not path["from"].startswith("<async>")
             and not path["to"].startswith("<async>")]
    lines, passed = [], 0.0
    for step in max(paths, key=lambda path: sum(step["delay"] for step in path["path"]))["path"]:
        passed += step["delay"]
        port = step["to"].get("port", "")
        if port not in ("FCI", "FCO"):  # skip the inside of a carry chain
            lines.append(f"\n    {passed:6.2f} ns  {step['type']:<8}  {step['to']['cell']}.{port}")
    return "".join(lines)


def _option(text: str) -> tuple[str, int]:
    name, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"-?\d+", value):
        raise argparse.ArgumentTypeError(f"option must be NAME=NUMBER, not {text!r}")
    return name, int(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and run the command."""
    parser = argparse.ArgumentParser(prog="python -m boards.synth", description=__doc__.partition("\n")[0])
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--unit", action="append", help="unit to place; may be given several times")
    chosen.add_argument("--list", action="store_true", help="show the names of all units")
    chosen.add_argument("--table", action="store_true", help="show all earlier results as a table")
    parser.add_argument("--seeds", type=int, default=3, help="number of placements per unit")
    parser.add_argument("--count", action="store_true", help="only count cells, without placement, and print JSON")
    parser.add_argument("--breakdown", action="store_true", help="with --count: show the LUTs of each part")
    parser.add_argument("--part", default=DEFAULT_PART, help="part with speed grade")
    parser.add_argument("--freq", type=float, default=120.0, help="target clock frequency in MHz")
    parser.add_argument("--mapper", choices=MAPPERS, default=DEFAULT_MAPPER, help="tool that maps logic to LUTs")
    parser.add_argument("--dsp-registers", action="store_true", help="let DSP blocks absorb nearby registers")
    parser.add_argument("--path", action="store_true", help="show the critical path of each placement")
    parser.add_argument("--native", action="store_true", help="use yosys and nextpnr-ecp5 on PATH")
    parser.add_argument("--lanes", type=int, help="short for --set lanes=LANES")
    parser.add_argument("--dsps", type=int, help="short for --set dsps=DSPS")
    parser.add_argument("--set", type=_option, action="append", default=[], metavar="NAME=NUMBER", dest="options",
                        help="parameter of the unit; may be given several times")
    values = parser.parse_args(arguments)
    if values.breakdown and not values.count:
        parser.error("--breakdown is for --count")
    options = dict(values.options)
    options.update({name: getattr(values, name) for name in ("lanes", "dsps") if getattr(values, name) is not None})

    def progress(text: str) -> None:
        print(text, file=sys.stderr)

    def work() -> None:
        if values.list:
            print("\n".join(sorted(UNITS)))
        elif values.table:
            print(table())
        for unit in values.unit or ():
            if values.count:
                print(json.dumps(count(unit, options=options, native=values.native, mapper=values.mapper,
                                       dsp_registers=values.dsp_registers, breakdown=values.breakdown,
                                       progress=progress)))
                continue
            result = measure(unit, options=options, part=values.part, seeds=values.seeds, frequency=values.freq,
                             native=values.native, mapper=values.mapper, dsp_registers=values.dsp_registers,
                             path=values.path, progress=progress)
            _print(result)

    return finish(work)


def _print(result: dict):
    fmax = result["fmax_mhz"]
    missed = result["seeds_below_target"]
    print(f"{result['name']} on {result['part']}, {result['tools']['yosys']}, {result['tools']['nextpnr']}")
    print(f"  LUT4 {result['lut4']}  CCU2C {result['ccu2c']}  LUT-RAM {result['lut_ram']}  (in all "
          f"{result['lut4_occupied']} LUTs)  FF {result['ff']}  DSP {result['dsp']}  BRAM {result['bram']}")
    if "wires_per_link" in result:
        print(f"  wires per link: {' + '.join(map(str, result['wires_per_link']))}")
    print(f"  Fmax {fmax['median']} MHz median of {result['seeds']} seeds, {fmax['min']} to {fmax['max']}; target "
          f"{result['target_mhz']:g} MHz {'met by all' if not missed else f'MISSED by {missed}'}")


if __name__ == "__main__":
    sys.exit(main())
