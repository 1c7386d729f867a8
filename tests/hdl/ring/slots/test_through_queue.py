# amaranth: UnusedElaboratable=no
"""A queue that is no register while it is empty: hdl/ring/slots/through_queue.py."""

import random
import re

import pytest

from hdl.ring.slots.through_queue import ThroughQueue
from sim.verilated.vectors import Unit
from tests.hdl.ring.replay.columns import Columns

DEPTH = 5


@pytest.mark.parametrize("depth", [1, 2.0, True])
def test_depth(depth):
    with pytest.raises(ValueError, match=f"^{re.escape(f'Depth must be an integer of at least 2, not {depth!r}')}$"):
        ThroughQueue(shape=8, depth=depth)


def test_lockstep():
    """Beats in order, in their cycle if nothing is kept, and else one behind the other; it is full at its depth."""
    generator, columns, kept, full = random.Random(3), Columns(), [], 0
    offered = None
    for cycle in range(6000):
        if cycle % 300 == 0:
            rates = generator.choice([.2, .6, 1]), generator.choice([.1, .5, 1])
        if offered is None and generator.random() < rates[0]:
            offered = generator.randrange(256)
        takes, ready = int(len(kept) < DEPTH), int(generator.random() < rates[1])
        shown = kept[0] if kept else offered
        columns.stream("i", offered, takes)
        columns.stream("o", shown, ready)
        full += not takes
        if offered is not None and takes:
            kept.append(offered)
            offered = None
        if shown is not None and ready:
            kept.pop(0)
    assert full
    columns.compare(Unit(ThroughQueue(shape=8, depth=DEPTH)))
