# amaranth: UnusedElaboratable=no
"""Sizes and units of ends of links in slots (hdl/ring/slots/link.py)."""

import dataclasses
import re

import pytest

from hdl.config import NodeConfig
from hdl.ring.control_words import units
from hdl.ring.header import packet_words
from hdl.ring.slots.link import SlotLink, egress_words

SLOTS = NodeConfig(replay=True, queues=2, slots=True)


def test_without_slots():
    with pytest.raises(ValueError, match=f"^{re.escape('Node with ends of links in slots must have slots')}$"):
        SlotLink(config=NodeConfig(replay=True, queues=2))


@pytest.mark.parametrize(("segment", "words"), [(32, 128), (64, 256), (256, 1024), (512, 2048)])
def test_room_for_packets(segment, words):
    config = NodeConfig(replay=True, queues=2, slots=True, segment=segment)
    assert egress_words(config) == words >= 3 * packet_words(segment)


def test_units():
    """Nodes with slots have two units more, whose gateware is in the ends of links."""
    assert [unit.name for unit in units(SLOTS)] == ["relay", "keepalive", "records", "clock"]
    assert [unit.name for unit in units(dataclasses.replace(SLOTS, messages=True))][4:] == ["places"]
    assert [unit.name for unit in units(NodeConfig(replay=True, queues=2))] == ["relay", "keepalive"]
