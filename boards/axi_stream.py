"""Expose a component's streams as AXI4-Stream signals; docs/verilog.md explains TKEEP."""

import dataclasses
import itertools

from amaranth.hdl import Shape
from amaranth.lib import data, stream
from amaranth.lib.wiring import In

from sim.verilated.verilog import Port

__all__ = ["AxiStream", "Field", "fields", "streams"]


@dataclasses.dataclass(frozen=True)
class Field:
    """Named field of a bit vector: one number or an array of numbers.

    Parameters
    ----------
    name : str
        Dotted name in the layout; empty for a payload without fields.
    low : int
        Index of the lowest bit in the vector.
    width : int
        Number of bits per number.
    pitch : int
        Distance between the starts of numbers, in bits; more than ``width`` if numbers are byte-aligned.
    count : int or None
        Array length; None if the field is not an array.
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
        """Number of bits that the field occupies in the vector, including padding."""
        return self.pitch * (1 if self.count is None else self.count)

    @property
    def description(self):
        """Describe the field's range, name and format."""
        form = []
        if self.count is not None:
            form.append(f"{self.count} x {self.width} bits" + (f", each in {self.pitch}" * (self.pitch > self.width)))
        if self.signed:
            form.append("signed")
        text = f"{_range(self.low, self.bits)} {self.name}".rstrip()
        return f"{text} ({', '.join(form)})" if form else text

    def select(self, vector, total):
        """Return Verilog slices of the field's bits in a ``total``-bit vector, lowest first, without padding."""
        if self.pitch == self.width:
            return [_select(vector, self.low, self.bits, total)]
        return [_select(vector, self.low + n * self.pitch, self.width, total) for n in range(self.count)]


def fields(shape, *, name="", low=0):
    """Yield the fields of a payload that have at least one bit; the first starts at bit ``low``."""
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
    """Stream of a component, exposed as AXI4-Stream signals.

    ``last`` is TLAST. If a payload has ``elements`` and a ``keep`` bit per element, TKEEP repeats each keep bit for
    every byte of its element. Elements are then byte-aligned and start at bit 0. All other fields follow in TDATA, in
    order and without gaps, padded with zeros to a whole byte.

    Parameters
    ----------
    name : str
        Flattened stream name.
    is_input : bool
        Whether the component receives the stream.
    shape : ShapeLike
        Payload shape.
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

        self._data = {}  # maps payload fields to TDATA fields
        self._data_bits = 0
        # Elements come first in TDATA, wherever they are in the payload, because TKEEP describes them.
        for field in sorted(self._payload, key=lambda field: field != self._lanes):
            if field not in (self._last, self._keep):
                pitch = 8 * self._lane_bytes if field == self._lanes else field.pitch
                self._data[field] = dataclasses.replace(field, low=self._data_bits, pitch=pitch)
                self._data_bits += self._data[field].bits
        self._data_bytes = -(-self._data_bits // 8)

    @property
    def ports(self):
        """AXI4-Stream signals, in the order of the standard."""
        widths = {"tvalid": 1, "tready": 1, "tdata": 8 * self._data_bytes,
                  "tkeep": self._data_bytes if self._keep else 0, "tlast": 1 if self._last else 0}
        return tuple(Port(f"{self.prefix}_{signal}", width, self.is_input != (signal == "tready"))
                     for signal, width in widths.items() if width)

    @property
    def description(self):
        """One-line description of the bits that hold each field."""
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
        """Names and widths of the wires from the component to an output's signals."""
        return [] if self.is_input else [(f"{self.name}__payload", self._payload_bits)]

    @property
    def connections(self):
        """Ports of the component, each with the Verilog expression connected to it."""
        pairs = [(f"{self.name}__{signal}", f"{self.prefix}_t{signal}") for signal in ("valid", "ready")]
        payload = f"{self.name}__payload"
        return [*pairs, (payload, self._given if self.is_input else payload)]

    @property
    def _given(self):
        """Verilog expression for the payload of an input, assembled from its AXI signals."""
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
        """Signals of an output, each with the Verilog expression assigned to it."""
        if self.is_input:
            return []
        payload, total = f"{self.name}__payload", self._payload_bits
        pieces = []
        for field, target in self._data.items():
            if target.pitch == target.width:
                pieces.append(_select(payload, field.low, field.bits, total))
            else:
                for n in range(field.count):
                    pieces += [_select(payload, field.low + n * field.pitch, field.width, total),
                               f"{target.pitch - target.width}'d0"]
        if self._data_bits % 8:
            pieces.append(f"{-self._data_bits % 8}'d0")
        pairs = [(f"{self.prefix}_tdata", _concatenation(pieces))] if pieces else []
        if self._keep:
            lanes = self._keep.width
            bits = [f"{{{self._lane_bytes}{{{_select(payload, self._keep.low + n, 1, total)}}}}}"
                    for n in range(lanes)]
            extra = self._data_bytes - lanes * self._lane_bytes
            pairs.append((f"{self.prefix}_tkeep", _concatenation(bits + [f"{{{extra}{{1'b1}}}}"] * bool(extra))))
        if self._last:
            pairs.append((f"{self.prefix}_tlast", _select(payload, self._last.low, 1, total)))
        return pairs


def _select(vector, low, width, total):
    """Select bits of a ``total``-bit vector; selecting all of them returns the vector itself."""
    return vector if width == total else f"{vector}{_range(low, width)}"


def _range(low, width):
    return f"[{low}]" if width == 1 else f"[{low + width - 1}:{low}]"


def _concatenation(pieces):
    """Concatenate Verilog expressions; the first one becomes the lowest bits."""
    return pieces[0] if len(pieces) == 1 else f"{{{', '.join(reversed(pieces))}}}"


def streams(component):
    """Find all streams of a component."""
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
