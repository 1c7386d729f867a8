# amaranth: UnusedElaboratable=no
"""One unit, or the whole node, as a file of plain Verilog-2005 with AXI4-Stream ports.

Run as ``make verilog UNIT=compression.zero_value.encoder``, or ``python -m boards.verilog --unit node``; the file is
``build/verilog/<unit>.v``. docs/verilog.md explains port names and TKEEP.
"""

import argparse
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from amaranth.lib.wiring import Component

from boards.axi_stream import fields, streams
from boards.command_line import finish
from boards.tools import SynthesisError, prepare, save
from boards.units import UNITS
from boards.verilog_lint import lint, primitives, top_module
from hdl.choices import choice_error
from hdl.config.forms import as_options
from sim.verilated import toolchain
from sim.verilated.verilog import Design, Port, convert

__all__ = ["design", "wrap", "write"]

RESULTS = toolchain.BUILD / "verilog"

#: Maximum length of a file name that spells out all options.
LABEL = 80


def wrap(component: Component, *, name: str, title: Sequence[str] = ()) -> Design:
    """Convert a component to Verilog with AXI4-Stream ports and a header comment that describes them.

    Parameters
    ----------
    component : Component
    name : str
        Name of the top module, and prefix of all other module names.
    title : sequence of str
        First lines of the header comment.
    """
    core = convert(component, name=f"{name}_core")
    axis = streams(component)
    connections = [pair for stream in axis for pair in stream.connections]
    taken = {"clk", "rst", *(inner for inner, _ in connections)}
    plain = [port for port in core.ports if port.name not in taken]
    ports = [port for stream in axis for port in stream.ports] + plain
    connections += [(port.name, port.name) for port in plain]
    if core.clocked:
        ports = [Port("aclk", 1, True), Port("aresetn", 1, True), *ports]
        connections = [("clk", "aclk"), ("rst", "~aresetn"), *connections]
    header = [*title, "", *_header(component, axis, plain, core.clocked)]
    for primitive in primitives(core.text):
        header += ["", f"Needs {primitive}, a primitive of the part, which is not in this file."]
    lines = [
        *(f"// {line}".rstrip() for line in header),
        "",
        f"module {name} (",
        ",\n".join(f"  {'input' if port.is_input else 'output'} wire {_vector(port.width)}{port.name}"
                   for port in ports),
        ");",
        *(f"  wire {_vector(width)}{wire};" for stream in axis for wire, width in stream.wires),
        f"  {core.name} core (",
        ",\n".join(f"    .{inner}({outer})" for inner, outer in connections),
        "  );",
        *(f"  assign {target} = {source};" for stream in axis for target, source in stream.assignments),
        "endmodule",
        "",
        # Remove the core's `top` attribute, because tools that look for it must find the top module instead.
        re.sub(r"^\(\* top = .*\*\)\n", "", core.text, flags=re.MULTILINE),
    ]
    return Design(name, "\n".join(lines), tuple(ports))


def _vector(width):
    return "" if width == 1 else f"[{width - 1}:0] "


def _header(component, axis, plain, clocked):
    if clocked:
        yield "Clock: aclk, rising edge. Reset: aresetn, active low, synchronous to aclk, for at least one edge."
        yield "Registers have initial values too; memories have no reset."
    else:
        yield "No clock and no reset: outputs depend on inputs alone."
    if axis:
        yield ""
        yield "AXI4-Stream, s_ to the unit and m_ from it; the first of several numbers has the lowest bits:"
        yield from (f"  {stream.description}" for stream in axis)
    if plain:
        shapes = {"__".join(map(str, path)): member.shape
                  for path, member, _ in component.signature.flatten(component)}
        yield ""
        yield "Other ports:"
        for port in plain:
            described = ", ".join(field.description for field in fields(shapes[port.name]))
            yield f"  {port.name}, {'input' if port.is_input else 'output'}: {described}"


def _label(unit, options):
    label = "-".join([unit, *(f"{key}={value}" for key, value in sorted(options.items()))])
    # Tools truncate or replace longer module names.
    return label if len(label) <= LABEL else f"{unit}-{toolchain.digest(label)[:8]}"


def design(unit: str, *, options: dict | None = None, progress: Callable[[str], None] = lambda text: None) -> Design:
    """Generate the Verilog of one unit.

    The top module is named ``gradring_`` plus the unit's name and all parameters that differ from the defaults, as in
    ``gradring_floating_multiply_dsps_2``. If the name would be too long, a digest replaces the parameters.

    Parameters
    ----------
    unit : str
        A key of :data:`boards.units.UNITS`.
    options : dict or None
        Parameters of the unit, which override its entry's parameters.
    progress : callable
        Called with a line of text at the start of each stage.
    """
    if unit not in UNITS:
        raise SynthesisError(choice_error("Unit", sorted(UNITS), unit, listed="`python -m boards.verilog --list`"))
    label = _label(unit, options or {})
    factory, arguments = UNITS[unit].call(options or {})
    component = factory(**arguments)
    progress(f"{unit}: Verilog")
    return wrap(component, name=top_module(label), title=[
        f"{label}, of gradring {toolchain.version('gradring')}", "SPDX-License-Identifier: Apache-2.0", "",
        f"Parameters: {_parameters(factory, arguments) or 'none'}"])


def write(unit: str, *, options: dict | None = None,
          progress: Callable[[str], None] = lambda text: None) -> Path:
    """Write ``build/verilog/<unit>.v``, with the options in its name, and check it with Verilator.

    The parameters are as in :func:`design`.
    """
    path = RESULTS / f"{_label(unit, options or {})}.v"
    prepare(RESULTS)
    save(path, design(unit, options=options, progress=progress).text)
    progress(f"{unit}: check by Verilator")
    lint(path)
    return path


def _parameters(factory, arguments: dict) -> str:
    """Format all parameters by name; fields of a configuration are listed separately."""
    bound = inspect.signature(factory).bind(**arguments)
    bound.apply_defaults()
    pairs = {}
    for name, value in bound.arguments.items():
        if name == "config":
            pairs.update(as_options(value))
        elif name not in ("engines", "operations"):  # both follow from the configuration
            pairs[name] = value
    return ", ".join(f"{name}={value!r}" for name, value in pairs.items())


def _option(text: str) -> tuple[str, object]:
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise argparse.ArgumentTypeError(f"option must be NAME=VALUE, not {text!r}")
    if re.fullmatch(r"-?\d+", value):
        return name, int(value)
    return name, {"True": True, "False": False}.get(value, value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments and run the command."""
    parser = argparse.ArgumentParser(prog="python -m boards.verilog", description=__doc__.partition("\n")[0])
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--unit", nargs="+", action="extend", help="units to write")
    chosen.add_argument("--list", action="store_true", help="show the names of all units")
    parser.add_argument("--lanes", type=int, help="short for --set lanes=LANES")
    parser.add_argument("--set", type=_option, nargs="+", action="extend", default=[], metavar="NAME=VALUE",
                        dest="options", help="parameters of the unit, or node options for units with a node "
                                             "configuration, such as link.ingress=5: numbers, names, True or False")
    values = parser.parse_args(arguments)
    options = dict(values.options)
    if values.lanes is not None:
        options["lanes"] = values.lanes

    def work() -> None:
        if values.list:
            print("\n".join(sorted(UNITS)))
        for unit in values.unit or ():
            path = write(unit, options=options, progress=lambda text: print(text, file=sys.stderr))
            print(os.path.relpath(path))

    return finish(work)


if __name__ == "__main__":
    sys.exit(main())
