"""The golden models of packers and unpackers of planes, by hand."""

import numpy as np
import pytest

from sim.golden import stream
from tests.hdl.compression import plane_cycles as planes


def test_packer_cycles():
    """Chunks of 5 bytes into beats of 8: by hand."""
    packer = planes.Packer(2, np.ones(20, bool))
    taken = [packer.take(0, 5), packer.take(1, 5), packer.take(2, 5, align=True), packer.take(3, 5, last=True)]
    assert taken == [0, 1, 2, 3]
    # 5, then 8 and 2, then 7 up to 8, then 5 up to 8.
    assert packer.output.offered[:7].tolist() == [-1, -1, -1, 0, 1, 2, -1]


@pytest.mark.parametrize(("count", "size", "sizes"), [(0, 4, []), (3, 4, [3]), (8, 4, [4, 4]), (9, 4, [4, 4, 1])])
def test_chunks(count, size, sizes):
    assert planes.chunks(count, size) == sizes


def test_a_packer_that_waits():
    """While a beat is on offer, the chunk behind it waits in the register, and no other is taken."""
    packer = planes.Packer(1, np.arange(20) >= 10)
    assert [packer.take(0, 4), packer.take(1, 4), packer.take(2, 4)] == [0, 1, 10]
    assert packer.output.offered[:14].tolist() == [-1, -1, *[0] * 9, 1, 2, -1]


def test_what_is_left_of_a_packet():
    """6 and 6 bytes in beats of 8: the rest is a beat of its own, and the chunk behind waits for it."""
    packer = planes.Packer(2, np.ones(20, bool))
    assert [packer.take(0, 6), packer.take(0, 6, last=True)] == [0, 1]
    assert [packer.take(0, 8, last=True), packer.take(0, 8, last=True)] == [2, 4]
    assert packer.output.offered[:8].tolist() == [-1, -1, -1, 0, 1, 2, 3, -1]
    packer = planes.Packer(2, np.ones(20, bool))
    assert [packer.take(0, 6), packer.take(0, 6, last=True), packer.take(0, 4), packer.take(0, 4)] == [0, 1, 2, 4]


def test_what_alignment_fills():
    """7 and 8 bytes, with the one that is filled in, are two beats of 8 within a packet."""
    packer = planes.Packer(2, np.ones(20, bool))
    assert [packer.take(0, 7), packer.take(1, 8, align=True), packer.take(2, 8)] == [0, 1, 2]
    assert packer.output.offered[:7].tolist() == [-1, -1, -1, 0, 1, 2, -1]


def test_unpacker_cycles():
    """Chunks of 5 bytes out of beats of 8: the second needs the second beat, the fourth the third."""
    always = np.ones(30, bool)
    unpacker = planes.Unpacker(2, 3, always)
    shown = []
    for number in range(4):
        shown.append(max(unpacker.shown(5), *[cycle + 1 for cycle in shown], 0))
        unpacker.take(shown[-1], 5, last=number == 3)
    # A beat is accepted in one cycle, in front in the next, and shown in the one behind.
    assert shown == [2, 3, 4, 5]
    late = planes.Unpacker(2, 3, np.array([cycle not in range(1, 10) for cycle in range(30)]))
    assert [late.shown(8), late.shown(9)] == [2, 11]
    # Taken late, a beat leaves then, and the one behind it is shown in the next cycle.
    slow = planes.Unpacker(2, 3, always)
    slow.take(10, 8)
    assert slow.shown(8) == 11
    assert np.flatnonzero(slow.feed.valid & slow.feed.ready).tolist() == [0, 1, 10]


def test_registers():
    """Beats of an encoder with two registers move on each cycle; with a last one that is left late, they queue up."""
    feed = stream.Feed(4, np.ones(30, bool))
    registers = planes.Registers(feed, 1)
    left = []

    def leave(cycle):
        left.append(max(cycle, 10, *[one + 1 for one in left]))
        return left[-1]

    for real in (True, True, True, False):
        registers.beat(0, leave, real=real)
    assert left == [10, 11, 12, 13]
    assert np.flatnonzero(feed.valid & feed.ready).tolist() == [0, 1, 10]
    assert registers.free == 12
