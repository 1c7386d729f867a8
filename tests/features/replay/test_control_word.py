"""Control word formats: hdl/features/replay/control_word.py."""

from hdl.features.replay.control_word import (
    ControlType,
    close_layout,
    control_layout,
    keepalive_layout,
    restart_layout,
    signal_layout,
)
from sim.golden.features.replay.control_words import keepalive_word
from tests.features.replay.link_model import restart_word


def test_words():
    layouts = [control_layout(), restart_layout(), signal_layout(), keepalive_layout()]
    assert [layout.size for layout in (*layouts, close_layout())] == [32] * 5
    assert {(layout["type"].offset, layout["type"].width) for layout in layouts} == {(0, 4)}


def test_restart():
    for start, type in enumerate((ControlType.RESTART, ControlType.START)):
        word = restart_layout().const({"type": type, "number": 0x2A5, "id": 2})
        assert word.as_bits() == restart_word(0x2A5, 2, start).data


def test_signal():
    word = signal_layout().const({"type": ControlType.SIGNAL, "source": 0xA, "queue": 2, "run": 0x35, "done": 0x1234})
    assert word.as_bits() == 2 | 0xA << 4 | 2 << 8 | 0x35 << 10 | 0x1234 << 16


def test_keepalive():
    word = keepalive_layout().const({"type": ControlType.KEEPALIVE, "hops": 14})
    assert word.as_bits() == keepalive_word(14)
