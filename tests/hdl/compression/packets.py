"""Conversion between packets and beats of elements or words, for tests of codecs with tables."""

import numpy as np

from hdl.streams.stream import beat_layout, word_layout
from sim.payload import pack, unpack
from tests.hdl.unit_bench import Want


def as_rows(vectors, lanes, generator, *, width=32):
    """Split vectors into beats of elements, keep and last; elements without ``keep`` are random."""
    rows, keep, last = [], [], []
    for vector in vectors:
        count = -(-len(vector) // lanes)
        padded = generator.integers(0, 1 << width, count * lanes, dtype=np.uint32)
        padded[:len(vector)] = vector
        rows.append(padded.reshape(count, lanes))
        keep.append((np.arange(count * lanes) < len(vector)).reshape(count, lanes))
        last.append(np.arange(count) == count - 1)
    return np.concatenate(rows), np.concatenate(keep), np.concatenate(last)


def as_beats(rows, keep, last, *, width=32):
    """Pack beats (elements, ``keep`` and ``last``) into the payloads of a port."""
    lanes = rows.shape[1]
    return pack(beat_layout(lanes, width), {
        "elements": rows, "keep": (keep << np.arange(lanes)).sum(axis=1), "last": last})


def beats(vectors, lanes, *, width=32, seed=1):
    """Pack vectors, one packet each, into the payloads of a port; elements without ``keep`` are random."""
    return as_beats(*as_rows(vectors, lanes, np.random.default_rng(seed), width=width), width=width)


def words(vectors):
    """Pack vectors, one packet each, into payloads of one word."""
    vectors = list(vectors)
    last = np.concatenate([np.arange(len(vector)) == len(vector) - 1 for vector in vectors])
    return pack(word_layout(), {"data": np.concatenate(vectors), "last": last})


def kept(rows, lanes, *, width=32):
    """Mask of the bits of beats to compare: all bits except those of elements that are not kept."""
    keep = unpack(beat_layout(lanes, width), rows)["keep"][:, np.newaxis] >> np.arange(lanes) & 1
    ones = np.ones(len(rows), np.uint64)
    return pack(beat_layout(lanes, width), {
        "elements": keep * np.uint64((1 << width) - 1), "keep": ones * np.uint64((1 << lanes) - 1), "last": ones})


def want(trace, rows, lanes, *, width=32, scan=None):
    """Expected ports of a codec without errors: handshakes of the trace and of ``scan``, and output beats."""
    result = Want.of(trace, (rows, kept(rows, lanes, width=width)), without=("scan_valid", "scan_ready"))
    if scan is not None:
        result.ports.update({f"{scan}__valid": trace.scan_valid, f"{scan}__ready": trace.scan_ready})
    result.ports["error"] = np.zeros(len(trace.o_valid), bool)
    return result


def taken(trace, lanes, *, width=32, name="o"):
    """Packets that a unit outputs, the incomplete last packet, and the cycle of each beat."""
    when = np.flatnonzero(trace[f"{name}__valid"] & trace[f"{name}__ready"])
    payload = unpack(beat_layout(lanes, width), trace[f"{name}__payload"][when])
    keep = (payload["keep"][:, np.newaxis] >> np.arange(lanes) & 1).astype(bool)
    *whole, rest = np.split(np.arange(len(when)), np.flatnonzero(payload["last"]) + 1)
    rows = payload["elements"].reshape(-1, lanes)
    return [rows[places][keep[places]] for places in whole], rows[rest][keep[rest]], when


def same(trace, expected, rows, lanes, *, width=32, names=("i_valid", "i_ready", "o_valid"), note=""):
    """Check ports in every cycle, and compare the payloads of offered beats with the expected payloads."""
    for name in names:
        np.testing.assert_array_equal(trace[name.replace("_", "__")], getattr(expected, name), f"{name}, {note}")
    valid = expected.o_valid
    assert valid.any()
    got = unpack(beat_layout(lanes, width), trace["o__payload"][valid])
    want = unpack(beat_layout(lanes, width), rows[expected.offered[valid]])
    keep = (want["keep"][:, np.newaxis] >> np.arange(lanes) & 1).astype(bool)
    for field in ("keep", "last"):
        np.testing.assert_array_equal(got[field], want[field], f"{field}, {note}")
    np.testing.assert_array_equal(np.where(keep, got["elements"].reshape(-1, lanes), 0),
                                  np.where(keep, want["elements"].reshape(-1, lanes), 0), f"elements, {note}")
