import numpy as np
import pytest
from amaranth.hdl import signed
from amaranth.lib import data

from hdl.streams.stream import beat_layout, word_layout
from sim.payload import from_int, leaves, pack, row_type, to_int, unpack
from tests.refusals import refuses

ODD = data.StructLayout({
    "small": 3, "crossing": 40, "list": data.ArrayLayout(5, 7), "inner": data.StructLayout({"flag": 1, "whole": 64}),
    "sign": signed(6),
})


def _random(layout, count, seed):
    generator = np.random.default_rng(seed)

    def fields(shape):
        if isinstance(shape, data.ArrayLayout):
            return np.stack([fields(field.shape) for _, field in shape], axis=1)
        if isinstance(shape, data.StructLayout):
            return {key: fields(field.shape) for key, field in shape}
        width = shape if isinstance(shape, int) else shape.width
        return generator.integers(0, 1 << width, count, dtype=np.uint64)

    return fields(layout)


def _lists(fields):
    if isinstance(fields, dict):
        return {key: _lists(value) for key, value in fields.items()}
    return [fields]


def _equal(first, other):
    if isinstance(first, dict):
        return first.keys() == other.keys() and all(_equal(first[key], other[key]) for key in first)
    return np.array_equal(first, other)


@pytest.mark.parametrize("layout", [word_layout(), beat_layout(1), beat_layout(4), beat_layout(3, width=9), ODD])
def test_round_trip(layout):
    values = _random(layout, 100, seed=1)
    rows = pack(layout, values)
    assert _equal(unpack(layout, rows), values)
    for index in (0, 1, 99):
        bits = sum(int(word) << 32 * n for n, word in enumerate(np.atleast_1d(rows[index])))
        fields = from_int(layout, bits)
        assert to_int(layout, fields) == bits
        assert _equal(unpack(layout, rows[index:index + 1]), _lists(fields))


def test_agrees_with_amaranth():
    layout = beat_layout(2, width=8)
    values = {"elements": [3, 200], "keep": 1, "last": 1}
    assert to_int(layout, values) == layout.const(values).as_bits()


def test_leaves():
    assert leaves(beat_layout(2, width=8)) == [
        (("elements", 0), 0, 8), (("elements", 1), 8, 8), (("keep",), 16, 2), (("last",), 18, 1)]


def test_plain_numbers():
    assert to_int(8, 200) == 200
    assert from_int(8, 0x1c8) == 200


def test_values_that_do_not_fit():
    refuses("Field last must be of 1 bits, not 2", to_int, word_layout(), {"data": 0, "last": 2})
    with pytest.raises(ValueError, match=r"^Field last must be of 1 bits, not 3$"):
        pack(word_layout(), {"data": np.array([0, 0]), "last": np.array([1, 3])})


@pytest.mark.parametrize(("width", "expected"), [
    (1, ("uint8", 1)), (8, ("uint8", 1)), (9, ("uint16", 1)), (32, ("uint32", 1)), (33, ("uint64", 1)),
    (64, ("uint64", 1)), (65, ("uint32", 3)), (133, ("uint32", 5)),
])
def test_row_type(width, expected):
    dtype, words = row_type(width)
    assert (dtype.name, words) == expected
