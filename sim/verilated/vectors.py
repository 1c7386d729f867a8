"""Run units as functions of arrays with one row per cycle, at millions of cycles per second.

Example
-------
Test fixed pipelines exhaustively or with millions of vectors. Ports of up to 64 bits are arrays of the smallest
suitable unsigned type; wider ports are arrays of 32-bit words of shape (cycles, words), low word first::

    unit = Unit(FloatAdder(format=FP32))
    outputs = unit.run({"a": a, "b": b}, drain=adder.latency)
    assert (outputs["o"][adder.latency:] == add(a, b)).all()

Test streams in lockstep with a model. The harness follows the handshake: it offers the beats when willing, is ready
as requested, and returns every port in every cycle::

    unit = Unit(Queue(shape=word_layout(), depth=5))
    beats = pack(word_layout(), {"data": words, "last": lasts})
    trace = unit.lockstep(sources={"i": Feed(beats, willing=stalls)}, sinks={"o": ready})
    trace["i__ready"], trace["o__valid"], unpack(word_layout(), trace["o__payload"])["data"]

A unit keeps its state between calls; :meth:`Unit.reset` returns it to its initial state.
"""

import ctypes
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.lib.wiring import Component

from sim.payload import pack, row_type, unpack
from sim.verilated import toolchain
from sim.verilated.native import FUNCTIONS, Arithmetic
from sim.verilated.verilog import Port, convert, with_loops

__all__ = ["Feed", "Unit", "pack", "unpack"]

_HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Feed:
    """Beats that the harness offers on one input stream.

    Parameters
    ----------
    beats : array
        Rows of the payload, in order.
    willing : array of bool or None
        For each cycle, whether the source may start offering its next beat; by default always. An offer stays until
        it is accepted; without an offer, the payload is noise.
    """

    beats: np.ndarray
    willing: np.ndarray | None = None


class _Stream(ctypes.Structure):
    _fields_ = [
        ("valid", ctypes.c_int32), ("payload", ctypes.c_int32), ("ready", ctypes.c_int32), ("source", ctypes.c_int32),
        ("beats", ctypes.c_void_p), ("count", ctypes.c_int64), ("willing", ctypes.c_void_p),
        ("taken", ctypes.c_int64), ("offering", ctypes.c_int32),
    ]


class Unit:
    """A Verilated component, simulated as a function of arrays.

    Parameters
    ----------
    component : Component
        Unit to simulate. It is built once per design, and later runs reuse the library.
    name : str or None
        Module and library name; by default the name of the component's class.
    arithmetic : Arithmetic
        Whether to simulate floating-point units as gateware.
    level : str
        Compiler optimization level; higher levels take longer to build.
    """

    def __init__(self, component: Component, *, name: str | None = None,
                 arithmetic: Arithmetic = Arithmetic.GATEWARE, level: str = "-O1") -> None:
        self._design = convert(component, name=name or type(component).__name__, arithmetic=arithmetic)
        self.inputs = tuple(p for p in self._design.ports if p.is_input and p.name not in ("clk", "rst"))
        self.outputs = tuple(p for p in self._design.ports if not p.is_input)
        path = toolchain.shared_library(
            self._design.name, with_loops(self._design.text), harness=[_HERE / "vectors.cpp"],
            headers={"ports.h": self._header(), "vectors.h": toolchain.without_comments(_HERE / "vectors.h")},
            before=FUNCTIONS if arithmetic is Arithmetic.NATIVE else "", level=level)
        self._library = ctypes.CDLL(str(path))
        self._library.unit_create.restype = ctypes.c_void_p
        for function in ("unit_destroy", "unit_reset", "unit_run"):
            getattr(self._library, function).restype = None
        self._unit = ctypes.c_void_p(self._library.unit_create())
        self.reset()

    def __del__(self) -> None:
        if hasattr(self, "_unit"):
            self._library.unit_destroy(self._unit)

    def _header(self) -> str:
        def table(name: str, ports: tuple[Port, ...]) -> str:
            rows = []
            for port in ports:
                member = f"top.{port.name.replace('__', '___05F')}"
                address = f"reinterpret_cast<unsigned char*>(&{member})"
                rows.append(f"    {name}.push_back({{{address}, sizeof {member}}});")
            return "\n".join(rows)

        return "\n".join([f"#define CLOCKED {int(self._design.clocked)}", "Unit::Unit() {",
                          table("inputs", self.inputs), table("outputs", self.outputs), "}", ""])

    def reset(self) -> None:
        """Run one reset cycle with all inputs zero."""
        self._library.unit_reset(self._unit)

    def run(self, inputs: Mapping[str, Any], *, cycles: int | None = None, drain: int = 0) -> dict[str, np.ndarray]:
        """Run with the given inputs; return the outputs of each cycle before its rising edge.

        Parameters
        ----------
        inputs : mapping
            Rows of each input port; omitted ports are zero, and a plain number is held constant.
        cycles : int or None
            Number of cycles to run; by default the number of rows.
        drain : int
            Number of additional cycles, during which array inputs are zero.
        """
        arrays = [value for value in inputs.values() if np.ndim(value)]
        if cycles is None:
            if not arrays:
                raise ValueError(f"Cycle count must be given where no input is an array, not {cycles!r}")
            cycles = len(arrays[0])
        rows = self._rows(inputs, cycles, drain)
        return self._run(rows, cycles + drain, (_Stream * 0)(), 0)

    def lockstep(self, *, sources: Mapping[str, Feed], sinks: Mapping[str, Any], cycles: int | None = None,
                 inputs: Mapping[str, Any] | None = None, seed: int = 1) -> dict[str, np.ndarray]:
        """Run with streams that follow the handshake; return all ports of the unit in each cycle.

        Parameters
        ----------
        sources : mapping
            Beats for each input stream, keyed by its flattened name.
        sinks : mapping
            Whether each output stream's sink is ready in each cycle: an array, or True for always.
        cycles : int or None
            Number of cycles to run; by default the length of the longest stall array. A stream stalls after the end
            of a shorter array.
        inputs : mapping or None
            Rows of all other input ports, as in :meth:`run`.
        seed : int
            Seed for the noise on invalid payloads.
        """
        patterns = [*(feed.willing for feed in sources.values()), *sinks.values()]
        if cycles is None:
            cycles = max((len(pattern) for pattern in patterns if np.ndim(pattern)), default=0)
            if not cycles:
                raise ValueError(f"Cycle count must be given where no stall pattern is an array, not {cycles!r}")
        rows = self._rows(inputs or {}, cycles, 0)
        streams = (_Stream * len(patterns))()
        alive = []  # keeps the memory alive that the library uses
        for stream, (name, feed) in zip(streams, sources.items(), strict=False):
            stream.source = 1
            stream.valid = self._index(self.inputs, f"{name}__valid")
            stream.payload = self._index(self.inputs, f"{name}__payload")
            stream.ready = self._index(self.outputs, f"{name}__ready")
            port = self.inputs[stream.payload]
            beats = _fit(port, feed.beats)
            # The harness masks its random values with this row, which has ones in all valid bits.
            rows[port.name][...] = _ones(port)
            stream.beats, stream.count = beats.ctypes.data, len(beats)
            alive.append(beats)
        for stream, name in zip(streams[len(sources):], sinks, strict=True):
            stream.valid = self._index(self.outputs, f"{name}__valid")
            stream.ready = self._index(self.inputs, f"{name}__ready")
        for stream, pattern in zip(streams, patterns, strict=True):
            willing = np.zeros(cycles, np.uint8)
            if np.ndim(pattern):
                willing[:len(pattern)] = pattern[:cycles]
            else:
                willing[:] = pattern is None or pattern
            stream.willing = willing.ctypes.data
            alive.append(willing)
        outputs = self._run(rows, cycles, streams, seed)
        return {**rows, **outputs}

    def _index(self, ports: tuple[Port, ...], name: str) -> int:
        for index, port in enumerate(ports):
            if port.name == name:
                return index
        raise ValueError(f"Port must be one of {', '.join(port.name for port in ports)}, not {name!r}")

    def _rows(self, inputs: Mapping[str, Any], cycles: int, drain: int) -> dict[str, np.ndarray]:
        rows = {port.name: _zeros(port, cycles + drain) for port in self.inputs}
        for name, value in inputs.items():
            port = self.inputs[self._index(self.inputs, name)]
            if np.ndim(value):
                fitted = _fit(port, value)
                if len(fitted) != cycles:
                    raise ValueError(f"Input {name} must have {cycles} rows, not {len(fitted)!r}")
                rows[name][:cycles] = fitted
            else:
                rows[name][...] = _constant(port, int(value))
        return rows

    def _run(self, rows: Mapping[str, np.ndarray], cycles: int, streams: Any, seed: int) -> dict[str, np.ndarray]:
        outputs = {port.name: _zeros(port, cycles) for port in self.outputs}
        self._library.unit_run(
            self._unit, ctypes.c_int64(cycles), _pointers([rows[port.name] for port in self.inputs]),
            _pointers([outputs[port.name] for port in self.outputs]), streams, ctypes.c_int64(len(streams)),
            ctypes.c_uint64(seed))
        return outputs


def _zeros(port: Port, count: int) -> np.ndarray:
    dtype, words = row_type(port.width)
    return np.zeros(count if words == 1 else (count, words), dtype)


def _constant(port: Port, value: int) -> np.ndarray:
    """Encode a value as a row of a port."""
    if not 0 <= value < 1 << port.width:
        raise ValueError(f"Value of {port.name} must be of {port.width} bits, not {value!r}")
    dtype, words = row_type(port.width)
    row = np.frombuffer(value.to_bytes(dtype.itemsize * words, "little"), dtype)
    return row if words > 1 else row[0]


def _ones(port: Port) -> np.ndarray:
    return _constant(port, (1 << port.width) - 1)


def _fit(port: Port, values: Any) -> np.ndarray:
    """Convert any array or sequence of suitable dimensions to rows of a port."""
    dtype, words = row_type(port.width)
    array = np.asarray(values)
    if array.ndim != (1 if words == 1 else 2) or (words > 1 and array.shape[1] != words):
        form = "one number" if words == 1 else f"{words} words of 32 bits"
        raise ValueError(f"Rows of {port.name} must be {form} each, not an array of shape {array.shape!r}")
    rows = np.ascontiguousarray(array, dtype)
    wrong = ((rows & ~_ones(port)) != 0) | (rows != array)
    if wrong.any():
        raise ValueError(f"Values of {port.name} must be of {port.width} bits, not {array[wrong][0].item()!r}")
    return rows


def _pointers(arrays: list[np.ndarray]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
