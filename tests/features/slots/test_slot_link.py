# amaranth: UnusedElaboratable=no
"""Parameters and units of link ends that support slots: hdl/features/slots/link.py."""

import pytest

from hdl.config import NodeConfig
from hdl.features.programs.feature import Programs
from hdl.features.replay.control_words import units
from hdl.features.replay.feature import Replay
from hdl.features.slots.feature import Slots
from hdl.features.slots.link import SlotLink, egress_words
from hdl.ring.header import packet_words
from tests.refusals import refuses

SLOTS = NodeConfig(link=Slots(), programs=Programs())


def test_without_slots():
    refuses("Node with ends of links in slots must have slots",
            SlotLink, config=NodeConfig(link=Replay(), programs=Programs()))


@pytest.mark.parametrize(("segment", "words"), [(32, 128), (64, 256), (256, 1024), (512, 2048)])
def test_room_for_packets(segment, words):
    config = NodeConfig(segment=segment, link=Slots(), programs=Programs())
    assert egress_words(config) == words >= 3 * packet_words(segment)


def test_units():
    """Nodes with slots have two additional control word units, and slot gateware at the ends of their links."""
    assert [unit.name for unit in units(SLOTS)] == ["relay", "keepalive", "records", "clock"]
    assert [unit.name for unit in units(SLOTS.replace(link=Slots(messages=True)))][4:] == ["places"]
    assert [unit.name for unit in units(NodeConfig(link=Replay(), programs=Programs()))] == ["relay", "keepalive"]
