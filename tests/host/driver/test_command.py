"""Test the encoding of commands and events, and the event statuses, of host/driver/command.py."""

import numpy as np
import pytest

from hdl.control.protocol import EventFlag, EventStatus, Operation
from host.driver.command import CollectiveError, Command, Event


def test_command_fields_are_checked():
    with pytest.raises(ValueError, match="Command's tag must be a number of 16 bits, not 65536"):
        Command(operation=Operation.QUIESCE, tag=1 << 16).words()
    with pytest.raises(ValueError, match="Command's length must be a number of 32 bits, not -1"):
        Command(operation=Operation.QUIESCE, length=-1).words()


def test_descriptor_words():
    command = Command(operation=Operation.BROADCAST, rank=2, size=4, port=1, gradient_base=32, weight_base=64,
                      state_base=96, length=100, epoch=5, root=3, collective=0x1234, wait=0x8001, signal=2,
                      tag=0xABCD, tenant=0x4321, after_0=7, after_1=0x8009, lag_0=1, lag_1=2, unit_queue=3,
                      remote=0, round=1, alternate=1, region=0x15, model=0x81, unit=0x42, block_offset=9,
                      stride=4, duration=0x12345678)
    assert command.words().tolist() == [0x01040205, 32, 64, 96, 100, 0x12340305, 0x00028001, 0x4321ABCD,
                                        0x80090007, 0x42 << 23 | 0x81 << 15 | 0x15 << 9 | 0x1B9, 0x0409, 0x12345678,
                                        0, 0, 0, 0]
    assert Command(operation=Operation.QUIESCE).words().tolist() == [0x00010000, *[0] * 9, 0x0100, *[0] * 5]


def test_command_of_words():
    command = Command(operation=Operation.FUSED_UPDATE, rank=3, size=4, gradient_base=64, length=1 << 31, tag=0xABCD,
                      after_1=7, lag_1=2, remote=1, unit=3, stride=4, duration=9)
    assert Command.from_words(command.words()) == command
    for index, bits in ((0, 0xEE), (15, 1)):
        words = command.words()
        words[index] = bits
        with pytest.raises(ValueError, match=r"must have zeros where it is reserved|is not a valid Operation"):
            Command.from_words(words)


def test_event_words():
    assert Event.from_words(np.array([0x4308ABCD, 1, 2, 3], np.uint32)) == Event(
        tag=0xABCD, status=EventStatus.BAD_CRC, flags=EventFlag.LOCAL_NAN | EventFlag.NOT_FINITE, detail=1, cycles=2,
        weight_version=3, queue=1)


@pytest.mark.parametrize("status", EventStatus)
def test_every_status_has_a_meaning(status):
    event = Event(tag=1, status=status, flags=EventFlag(0), detail=3, cycles=4, weight_version=5)
    assert len(str(CollectiveError(event))) > 50


def test_a_rule_that_a_node_does_not_have():
    event = Event(tag=1, status=EventStatus.BAD_RULE, flags=EventFlag(0), detail=3, cycles=4, weight_version=5)
    with pytest.raises(CollectiveError, match="ended with BAD_RULE: rule 3 of register OPTIMIZER needs more state "
                                              "planes than the node has; take another rule, or "):
        event.check()


def test_details_are_explained():
    event = Event(tag=1, status=EventStatus.WRONG_COLLECTIVE, flags=EventFlag(0), detail=5 << 16 | 6, cycles=4,
                  weight_version=5)
    with pytest.raises(CollectiveError, match="a packet of collective 5 came in, not of 6"):
        event.check()
