"""KEEPALIVE words: hdl/ring/replay/keepalive.py."""

import numpy as np

from hdl.ring.replay.control_word import ControlType
from hdl.ring.replay.keepalive import KeepAlive
from sim.verilated.vectors import Unit


def test_period():
    waiting = np.ones(8000, bool)
    waiting[3000] = False
    ready = np.ones(8000, bool)
    ready[5100:5200] = False
    found = Unit(KeepAlive()).lockstep(sources={}, sinks={"o": ready}, inputs={"waiting": waiting})
    offered = np.flatnonzero(found["o__valid"])
    # The offer of cycle 5049 is taken at once; that of a cycle without a willing sink stands.
    assert offered.tolist() == [1024, 2048, 4025, 5049, 6073, 7097]
    assert set(found["o__payload"][offered].tolist()) == {ControlType.KEEPALIVE.value}
