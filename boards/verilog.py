# amaranth: UnusedElaboratable=no
"""One unit, or the whole node, as a file of plain Verilog-2005 whose streams are AXI4-Stream.

Run as ``make verilog UNIT=compression.zero_value.encoder``, or ``python -m boards.verilog --unit node``; the file is
``build/verilog/<unit>.v``. docs/verilog.md says how ports are named and what TKEEP means.
"""

import argparse
import dataclasses
import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from amaranth.hdl import Shape
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In

from boards.synth import UNITS, SynthesisError
from boards.tools import prepare, save
from sim.verilated import toolchain
from sim.verilated.verilog import Design, Port, convert

__all__ = ["WAIVED", "WAIVED_BELOW", "WAIVED_OF_PRIMITIVES", "AxiStream", "Field", "design", "fields", "lint",
           "primitives", "streams", "wrap", "write"]

RESULTS = toolchain.BUILD / "verilog"

#: Longest name of a file, in which options are written out.
LABEL = 80

#: Warnings of ``verilator -Wall`` where nothing is wrong, each with the reason; first those of a whole file, ...
WAIVED = {
    "DECLFILENAME": "a file holds all modules of a unit, and is named as the unit is",
    "UNUSEDSIGNAL": "padding of TDATA, and fields that a unit ignores; each field of a payload is a wire of its own",
}

#: ... then those of the modules below the top one, which Yosys has written.
WAIVED_BELOW = {
    "PROCASSINIT": "registers have an initial value and a reset",
    "WIDTHEXPAND": "operands of different width, extended as the language says",
    "WIDTHTRUNC": "`!` of a vector; results that are cut to a field on purpose",
    "VARHIDDEN": "a signal with the name of the instance that its module is",
    "CASEINCOMPLETE": "what is assigned before a case holds in all others",
    "CASEOVERLAP": "cases in order of priority",
    "UNSIGNED": "comparisons with 0 that a parameter makes constant",
    "CMPCONST": "comparisons with a bound that a width cannot exceed",
    "UNOPTFLAT": "vectors whose bits depend on one another, without a loop",
}

#: ... and those of modules with a primitive of the part.
WAIVED_OF_PRIMITIVES = {
    "MODMISSING": "the primitive is in the part's library",
    "UNDRIVEN": "outputs of the primitive, whose directions are not known",
}


@dataclasses.dataclass(frozen=True)
class Field:
    """Bits of a vector that have one name: a number, or an array of numbers.

    Parameters
    ----------
    name : str
        As in the layout, with dots; empty for a payload without fields.
    low : int
        Place of the lowest bit in the vector.
    width : int
        Bits of one number.
    pitch : int
        Bits from one number to the next; more than ``width`` where each number begins at a byte.
    count : int or None
        Numbers of an array; None where there is no array.
    signed : bool
        Whether numbers are in two's complement.
    """

    name: str
    low: int
    width: int
    pitch: int
    count: int | None = None
    signed: bool = False

    @property
    def bits(self):
        """Bits of the vector up to the next field."""
        return self.pitch * (1 if self.count is None else self.count)

    @property
    def description(self):
        """Range, name and form."""
        form = []
        if self.count is not None:
            form.append(f"{self.count} x {self.width} bits" + (f", each in {self.pitch}" * (self.pitch > self.width)))
        if self.signed:
            form.append("signed")
        text = f"{_range(self.low, self.bits)} {self.name}".rstrip()
        return f"{text} ({', '.join(form)})" if form else text

    def select(self, vector, total):
        """Verilog of the field's bits in a vector of ``total`` bits, from the lowest on: slices without padding."""
        if self.pitch == self.width:
            return [_select(vector, self.low, self.bits, total)]
        return [_select(vector, self.low + n * self.pitch, self.width, total) for n in range(self.count)]


def fields(shape, *, name="", low=0):
    """Fields of a payload from bit 0 on, each of at least one bit."""
    try:
        layout = data.Layout.cast(shape)
    except TypeError:
        layout = None
    if isinstance(layout, data.StructLayout):
        for key, field in layout:
            yield from fields(field.shape, name=f"{name}.{key}" if name else key, low=low + field.offset)
    elif isinstance(layout, data.ArrayLayout):
        element = list(fields(layout.elem_shape))
        if len(element) == 1 and element[0].count is None and not element[0].name:
            yield dataclasses.replace(element[0], name=name, low=low, count=layout.length)
        else:
            for key, field in layout:
                yield from fields(field.shape, name=f"{name}[{key}]", low=low + field.offset)
    else:
        cast = Shape.cast(shape)
        if cast.width:
            yield Field(name, low, cast.width, cast.width, signed=cast.signed)


class AxiStream:
    """One stream of a component as signals of AXI4-Stream.

    ``last`` is TLAST. Where a payload has ``elements`` and a ``keep`` with a bit for each of them, TKEEP has the keep
    bit of an element at each of its bytes; every element begins at a byte, and the first one at bit 0. All other
    fields are in TDATA, in their order and without gaps, and zeros up to a whole byte follow.

    Parameters
    ----------
    name : str
        Flattened name of the stream.
    is_input : bool
        Whether the component receives it.
    shape : ShapeLike
        Payload.
    """

    def __init__(self, *, name, is_input, shape):
        self.name = name
        self.is_input = is_input
        self.prefix = f"{'s' if is_input else 'm'}_axis_{name}"
        self._payload = list(fields(shape))
        if not self._payload:
            raise ValueError(f"Payload of stream {name} must have at least one bit, not {shape!r}")
        self._payload_bits = sum(field.bits for field in self._payload)

        named = {field.name: field for field in self._payload}
        self._last = named.get("last") if "last" in named and named["last"].bits == 1 else None
        lanes, keep = named.get("elements"), named.get("keep")
        masked = lanes and keep and keep.count is None and keep.width == lanes.count
        self._lanes, self._keep = (lanes, keep) if masked else (None, None)
        self._lane_bytes = -(-lanes.width // 8) if masked else 0

        self._data = {}  # field of the payload to field of TDATA
        self._data_bits = 0
        # TKEEP begins with the elements, wherever they are.
        for field in sorted(self._payload, key=lambda field: field != self._lanes):
            if field not in (self._last, self._keep):
                pitch = 8 * self._lane_bytes if field == self._lanes else field.pitch
                self._data[field] = dataclasses.replace(field, low=self._data_bits, pitch=pitch)
                self._data_bits += self._data[field].bits
        self._data_bytes = -(-self._data_bits // 8)

    @property
    def ports(self):
        """Signals in the order of the standard."""
        widths = {"tvalid": 1, "tready": 1, "tdata": 8 * self._data_bytes,
                  "tkeep": self._data_bytes if self._keep else 0, "tlast": 1 if self._last else 0}
        return tuple(Port(f"{self.prefix}_{signal}", width, self.is_input != (signal == "tready"))
                     for signal, width in widths.items() if width)

    @property
    def description(self):
        """What is where, in one line."""
        parts = [f"tdata{field.description}" for field in self._data.values()]
        padding = -self._data_bits % 8
        if padding:
            parts.append(f"tdata{_range(self._data_bits, padding)} {'ignored' if self.is_input else 'zero'}")
        if self._keep:
            kept = self._keep.width * self._lane_bytes
            parts.append(f"tkeep{_range(0, kept)} {self._lane_bytes} per element")
            if self._data_bytes > kept:
                parts.append(f"tkeep{_range(kept, self._data_bytes - kept)} {'ignored' if self.is_input else 'ones'}")
        if self._last:
            parts.append("tlast")
        return f"{self.prefix}: {', '.join(parts)}"

    @property
    def wires(self):
        """What lies between the component and signals of an output: names and widths."""
        return [] if self.is_input else [(f"{self.name}__payload", self._payload_bits)]

    @property
    def connections(self):
        """Ports of the component, and what each is connected to."""
        pairs = [(f"{self.name}__{signal}", f"{self.prefix}_t{signal}") for signal in ("valid", "ready")]
        payload = f"{self.name}__payload"
        return [*pairs, (payload, self._given if self.is_input else payload)]

    @property
    def _given(self):
        """The payload of an input, made of its signals."""
        pieces = []
        for field in self._payload:
            if field == self._last:
                pieces.append(f"{self.prefix}_tlast")
            elif field == self._keep:
                size = self._lane_bytes
                lanes = [_select(f"{self.prefix}_tkeep", n * size, size, self._data_bytes)
                         for n in range(field.width)]
                pieces += lanes if size == 1 else [f"&{lane}" for lane in lanes]
            else:
                pieces += self._data[field].select(f"{self.prefix}_tdata", 8 * self._data_bytes)
        return _concatenation(pieces)

    @property
    def assignments(self):
        """Signals of an output, and what of the component's payload each is."""
        if self.is_input:
            return []
        payload, total = f"{self.name}__payload", self._payload_bits
        pieces = []
        for field, place in self._data.items():
            if place.pitch == place.width:
                pieces.append(_select(payload, field.low, field.bits, total))
            else:
                for n in range(field.count):
                    pieces += [_select(payload, field.low + n * field.pitch, field.width, total),
                               f"{place.pitch - place.width}'d0"]
        if self._data_bits % 8:
            pieces.append(f"{-self._data_bits % 8}'d0")
        pairs = [(f"{self.prefix}_tdata", _concatenation(pieces))] if pieces else []
        if self._keep:
            lanes = self._keep.width
            bits = [f"{{{self._lane_bytes}{{{_select(payload, self._keep.low + n, 1, total)}}}}}"
                    for n in range(lanes)]
            others = self._data_bytes - lanes * self._lane_bytes
            pairs.append((f"{self.prefix}_tkeep", _concatenation(bits + [f"{{{others}{{1'b1}}}}"] * bool(others))))
        if self._last:
            pairs.append((f"{self.prefix}_tlast", _select(payload, self._last.low, 1, total)))
        return pairs


def _select(vector, low, width, total):
    """Bits of a vector of ``total`` bits, which is none if it has only one."""
    return vector if width == total else f"{vector}{_range(low, width)}"


def _range(low, width):
    return f"[{low}]" if width == 1 else f"[{low + width - 1}:{low}]"


def _concatenation(pieces):
    """Pieces, of which the first has the lowest bits."""
    return pieces[0] if len(pieces) == 1 else f"{{{', '.join(reversed(pieces))}}}"


def streams(component):
    """All streams of a component."""
    def walk(signature, path):
        for name, member in signature.members.items():
            if member.is_port:
                continue
            for index in itertools.product(*map(range, member.dimensions)):
                inner = (*path, name, *map(str, index))
                if isinstance(member.signature, stream.Signature):
                    payload = member.signature.members["payload"]
                    yield AxiStream(name="__".join(inner), is_input=payload.flow == In, shape=payload.shape)
                else:
                    yield from walk(member.signature, inner)

    return list(walk(component.signature, ()))


def primitives(text: str) -> list[str]:
    """Modules with parameters that Verilog of Yosys uses. Those of a component have none, so they are the part's."""
    return sorted(set(re.findall(r"^  (\w+) #\($", text, flags=re.MULTILINE)))


def wrap(component: Component, *, name: str, title: Sequence[str] = ()) -> Design:
    """A component as Verilog whose streams are AXI4-Stream, with a header comment that says what is where.

    Parameters
    ----------
    component : Component
    name : str
        Of the top module. The names of all others begin with it.
    title : sequence of str
        First lines of the header.
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
        # Tools that look for this mark are to find the module above.
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


def lint(path: Path):
    """Have Verilator read a file as Verilog-2005, with all warnings but :data:`WAIVED` and :data:`WAIVED_BELOW`.

    They are put beside it as a control file, with the suffix ``.vlt``.

    Raises
    ------
    ToolError
        With what Verilator says, if it says anything.
    """
    text = path.read_text()
    lines = text.splitlines()
    below = 2 + lines.index("endmodule")
    rules = ["`verilator_config"]
    absent = WAIVED_OF_PRIMITIVES if primitives(text) else {}
    for waived, scope in ((WAIVED, ""), ({**WAIVED_BELOW, **absent}, f" -lines {below}-{len(lines)}")):
        for rule, reason in waived.items():
            rules += [f"// {reason}", f'lint_off -rule {rule} -file "*{path.name}"{scope}']
    control = path.with_suffix(".vlt")
    control.write_text("\n".join([*rules, ""]))
    command = [str(toolchain.verilator() / "bin" / "verilator"), "--lint-only", "-Wall", "--quiet",
               "--default-language", "1364-2005", "--top-module", _top(path.stem), control.name, path.name]
    output = toolchain.run(command, cwd=path.parent, env=toolchain.environment())
    if output.strip():
        raise toolchain.ToolError(f"Verilator has something to say about {path.name}:\n{output}")


def _label(unit, options):
    label = "-".join([unit, *(f"{key}={value}" for key, value in sorted(options.items()))])
    # Tools cut or replace longer names of modules.
    return label if len(label) <= LABEL else f"{unit}-{toolchain.digest(label)[:8]}"


def _top(label):
    return "gradring_" + re.sub(r"\W+", "_", label)


def design(unit: str, *, options: dict | None = None, progress: Callable[[str], None] = lambda text: None) -> Design:
    """The Verilog of one unit.

    The top module is called ``gradring_`` and the unit's name, followed by what differs from its defaults, such as
    ``gradring_floating_multiply_dsps_2``, or by a digest of it where that is long.

    Parameters
    ----------
    unit : str
        A key of :data:`boards.synth.UNITS`.
    options : dict or None
        Parameters of the unit in place of those of its entry.
    progress : callable
        Told what begins.
    """
    if unit not in UNITS:
        raise SynthesisError(f"Unit must be one of {', '.join(sorted(UNITS))}, not {unit!r}")
    label = _label(unit, options or {})
    factory, arguments = UNITS[unit].call(options or {})
    component = factory(**arguments)
    progress(f"{unit}: Verilog")
    return wrap(component, name=_top(label), title=[
        f"{label}, of gradring {toolchain.version('gradring')}", "SPDX-License-Identifier: Apache-2.0", "",
        f"Parameters: {_parameters(factory, arguments) or 'none'}"])


def write(unit: str, *, options: dict | None = None,
          progress: Callable[[str], None] = lambda text: None) -> Path:
    """Write ``build/verilog/<unit>.v`` and have it read by Verilator; options are part of the file's name.

    Parameters are those of :func:`design`.
    """
    path = RESULTS / f"{_label(unit, options or {})}.v"
    prepare(RESULTS)
    save(path, design(unit, options=options, progress=progress).text)
    progress(f"{unit}: check by Verilator")
    lint(path)
    return path


def _parameters(factory, arguments: dict) -> str:
    """All parameters by name, those of a configuration one by one."""
    bound = inspect.signature(factory).bind(**arguments)
    bound.apply_defaults()
    pairs = {}
    for name, value in bound.arguments.items():
        if name == "config":
            pairs.update({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
        else:
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
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m boards.verilog", description=__doc__.partition("\n")[0])
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--unit", nargs="+", action="extend", help="units to write")
    chosen.add_argument("--list", action="store_true", help="show the names of all units")
    parser.add_argument("--lanes", type=int, help="short for --set lanes=LANES")
    parser.add_argument("--set", type=_option, nargs="+", action="extend", default=[], metavar="NAME=VALUE",
                        dest="options", help="parameters of the unit, or of NodeConfig where it takes one: numbers, "
                                             "names, True or False")
    values = parser.parse_args(arguments)
    if values.list:
        print("\n".join(sorted(UNITS)))
        return 0
    options = dict(values.options)
    if values.lanes is not None:
        options["lanes"] = values.lanes
    try:
        for unit in values.unit:
            path = write(unit, options=options, progress=lambda text: print(text, file=sys.stderr))
            print(os.path.relpath(path))
    except (SynthesisError, toolchain.ToolError, TypeError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
