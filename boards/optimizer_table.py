"""Cost of each rule of the streamed optimizer, and its rate in parameters per second.

Run as ``make synth-optimizer`` or ``python -m boards.optimizer_table``. Each row is for one set of rules and one lane
count: a whole :class:`~hdl.optimizer.burst.StreamedOptimizer` with two workers and bursts of 256 elements, placed out
of context. In steady state, it updates one parameter per lane and cycle (as measured by ``make bench``), so the rate
in parameters per second is the number of lanes times Fmax.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from boards.command_line import finish
from boards.synth import DEFAULT_PART, measure
from boards.tools import RESULTS, SynthesisError, prepare, save
from hdl.choices import choice_error
from sim.verilated.processes import in_parallel

__all__ = ["LANES", "UNITS", "measure_all", "table"]

#: Unit of :mod:`boards.synth` that is placed for each row of the table, keyed by row name.
UNITS = {
    "SGD": "optimizer.sgd",
    "momentum": "optimizer.momentum",
    "Adam": "optimizer.adam",
    "AdamW": "optimizer.adamw",
    "all four": "optimizer.all",
    "momentum, int16": "optimizer.momentum_int16",
    "momentum, int18": "optimizer.momentum_int18",
}
LANES = (1, 2, 4)


def measure_all(*, units: Sequence[str] = tuple(UNITS), lanes: Sequence[int] = LANES, seeds: int = 3,
                part: str = DEFAULT_PART, processes: int = 2,
                progress: Callable[[str], None] = lambda text: None) -> list[dict]:
    """Place every unit with every lane count; return the results of :func:`boards.synth.measure` with the added
    fields ``rules``, ``lanes`` and ``parameters_per_second``.
    """
    if not 1 <= processes <= 1024:
        raise SynthesisError(f"Processes must be between 1 and 1024, not {processes!r}")
    unknown = [unit for unit in units if unit not in UNITS]
    if unknown:
        raise SynthesisError(choice_error("Rules", UNITS, unknown[0], separator="; "))

    def row(chosen):
        unit, count = chosen
        result = measure(UNITS[unit], options={"lanes": count}, seeds=seeds, part=part, progress=progress)
        rate = count * result["fmax_mhz"]["median"] * 1e6
        return {"rules": unit, "lanes": count, **result, "parameters_per_second": rate}

    return in_parallel(row, [(unit, count) for unit in units for count in lanes], most=processes)


def table(rows: Sequence[dict]) -> str:
    """Format the rows as a Markdown table."""
    lines = ["| rules | lanes | LUT4 | CCU2C | LUT RAM | FF | DSP | block RAM | Fmax MHz: median (range) | seeds "
             "| million parameters/s |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        fmax = row["fmax_mhz"]
        counts = " | ".join(str(row[name]) for name in ("lut4", "ccu2c", "lut_ram", "ff", "dsp", "bram"))
        lines.append(f"| {row['rules']} | {row['lanes']} | {counts} | {fmax['median']:.0f} ({fmax['min']:.0f} to "
                     f"{fmax['max']:.0f}) | {row['seeds']} | {row['parameters_per_second'] / 1e6:.0f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and run the command."""
    parser = argparse.ArgumentParser(prog="python -m boards.optimizer_table", description=__doc__.partition("\n")[0])
    parser.add_argument("--rules", action="append", choices=UNITS, help="rules of a row; may be given several times")
    parser.add_argument("--lanes", type=int, action="append", help="lanes of a row; may be given several times")
    parser.add_argument("--seeds", type=int, default=3, help="number of placements per row")
    parser.add_argument("--part", default=DEFAULT_PART, help="part with speed grade")
    parser.add_argument("--processes", type=int, default=2, help="number of concurrent placements")
    values = parser.parse_args(arguments)

    def work() -> None:
        path = RESULTS / "table" / "optimizer.json"
        prepare(path.parent)
        rows = measure_all(units=values.rules or tuple(UNITS), lanes=values.lanes or LANES, seeds=values.seeds,
                           part=values.part, processes=values.processes,
                           progress=lambda text: print(text, file=sys.stderr))
        save(path, json.dumps({"rows": rows}, indent=2) + "\n")
        print(table(rows))

    return finish(work)


if __name__ == "__main__":
    sys.exit(main())
