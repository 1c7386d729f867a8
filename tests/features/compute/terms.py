"""Test operands for multiply-accumulate units: the beats of whole tiles, encoded as inputs of an array."""

import numpy as np

from hdl.features.compute.array import term_layout
from hdl.features.mx.format import ONES
from hdl.floating.format import FP32
from sim.golden.features.compute.mac_array import SLOTS, Beats
from sim.golden.features.nvfp4.nvfp4 import NVFP4
from sim.payload import pack
from tests.hdl.floating import operands

KINDS = ("ordinary", "corners", "bits", "cancelling")

_CORNERS = operands.corners(FP32)


def draw(generator, kind, *shape):
    """Draw numbers of a kind: ordinary numbers, corner cases, random bits, or small and huge integers that cancel."""
    if kind == "corners":
        return generator.choice(_CORNERS, shape)
    if kind == "bits":
        return generator.integers(1 << 32, size=shape, dtype=np.uint32)
    if kind == "cancelling":
        return generator.choice(np.array([0, -0.0, 1, -1, 1e8, -1e8, 3], np.float32), shape).view(np.uint32)
    ordinary = generator.standard_normal(shape) * 2.0 ** generator.integers(-4, 4, shape)
    return ordinary.astype(np.float32).view(np.uint32)


def tile_of(generator, kind, *, rows, columns, rounds, initial, tile, bubbles=0.0):
    """Draw a tile's beats: optional rounds of initial values, then product rounds with some rows omitted.

    A tile without any of these rounds has a single round in which no row participates.
    """
    starts = rows if initial else 0
    empty = rounds == 0 and not initial
    count = starts + rounds + empty
    taken = generator.random((count, SLOTS, rows)) >= bubbles
    taken[:starts] = np.eye(rows, dtype=bool)[:starts, None, :]
    taken[count - empty:] = False
    marks = {name: np.zeros(count, bool) for name in ("initial", "first", "last")}
    marks["initial"][:starts] = True
    marks["first"][0] = marks["last"][-1] = True
    beats = count * SLOTS
    return Beats(a=draw(generator, kind, beats, rows), b=draw(generator, kind, beats, columns),
                 rows=taken.reshape(beats, rows), tile=np.full(beats, tile),
                 **{name: values.repeat(SLOTS) for name, values in marks.items()})


def rows_of(beats):
    """Encode beats of operands as payloads for the input of an array."""
    layout = term_layout(beats.a.shape[1], beats.b.shape[1])
    rows = (beats.rows << np.arange(beats.rows.shape[1])).sum(axis=1)
    return pack(layout, {"a": beats.a, "b": beats.b, "rows": rows, "initial": beats.initial, "first": beats.first,
                         "last": beats.last, "tile": beats.tile})


def scales_of(model, exponents):
    """Encode block scales of a golden format for the array: an exponent and, for NVFP4, a fraction in higher bits."""
    if not isinstance(model, NVFP4):
        return np.where(exponents == model.nan, ONES, exponents + model.lowest)
    number, power = model.scales(exponents)
    spare = 4 - np.frexp(number)[1]  # shift that makes the integer at least 8
    return np.where(exponents == model.nan, ONES, power + 127 + 1 - spare) | ((number << spare) - 8) << 8
