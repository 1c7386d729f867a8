# amaranth: UnusedElaboratable=no
"""The driver with faulty transports, and requests rejected by the driver itself."""

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.control.protocol import Space, Status
from host.driver.device import Device
from host.driver.errors import (
    BadAddressError,
    BadLengthError,
    ConfigurationError,
    DeviceError,
    DeviceTimeoutError,
    ProtocolError,
    QueueFullError,
    ReadOnlyError,
    UnknownOpcodeError,
)
from host.transports.pysim import PysimRing
from tests.words import words

PATIENCE = 10_000


class Canned:
    """A transport that answers successive requests with a list of prepared packets."""

    def __init__(self, *responses):
        self.responses = list(responses)
        self.sent = []
        self.closed = False

    def send(self, packet):
        self.sent.append(packet.tolist())

    def receive(self, timeout_cycles):
        if not self.responses:
            raise TimeoutError(f"nothing in {timeout_cycles} cycles: cable out")
        return words(*self.responses.pop(0))

    def close(self):
        self.closed = True


def canned(*responses):
    return Device(Canned(*responses), NodeConfig(), name="node 3", timeout=500)


@pytest.mark.parametrize(("response", "what"), [
    ([0x81000001], "must have at least 2 words, not 1"),
    ([0x82000001, 0, 1], "must have opcode 0x81, not 0x82"),
    ([0x81010001, 0, 1], "must have tag 0, not 1"),
    ([0x81000002, 0, 1], "must have the 2 payload words of its header, not 1"),
    ([0x81000000, 0], "must have 1 payload words, not 0"),
    ([0x81000001, 99, 1], "must have another status than 99"),
    ([0x81000001, Status.EMPTY, 1], "must have another status than 6"),
])
def test_wrong_responses(response, what):
    with pytest.raises(ProtocolError, match=f"node 3: response to a ping of 1 words {what}"):
        canned(response).ping(words(1))


def test_time_out_and_late_answer():
    device = canned()
    pending = device.submit_ping(words(1))
    with pytest.raises(DeviceTimeoutError, match=r"node 3: no response to a ping of 1 words in 500 cycles\n.*cable"):
        pending.result()
    device.transport.responses += [[0x81000001, 0, 1], [0x81010001, 0, 2]]
    assert device.ping(words(2)).tolist() == [2]
    assert pending.result().tolist() == [1]


def test_not_a_node():
    with pytest.raises(ConfigurationError, match=r"register ID must be 0x67720002, not 0xdeadbeef"):
        canned([0x82000002, 0, 0xDEADBEEF, 0]).connect()


@pytest.mark.parametrize(("status", "error"), [
    (Status.UNKNOWN_OPCODE, UnknownOpcodeError), (Status.BAD_LENGTH, BadLengthError),
    (Status.BAD_ADDRESS, BadAddressError), (Status.READ_ONLY, ReadOnlyError), (Status.QUEUE_FULL, QueueFullError),
])
def test_every_refusal_has_an_error(status, error):
    with pytest.raises(error, match=f"node 3: a ping of 1 words was refused with {status.name}; ") as caught:
        canned([0x81000000, status]).ping(words(1))
    assert isinstance(caught.value, DeviceError)


def test_an_event_of_another_version():
    with pytest.raises(ProtocolError, match="200 is not a valid EventStatus"):
        canned([0x87000004, 0, 200 << 16, 0, 0, 0]).pop_event(0)


def test_tags_wrap_and_the_transport_is_closed():
    device = canned(*([0x81000000 | n % 256 << 16, 0] for n in range(300)))
    for _ in range(300):
        device.ping(words())
    device.close()
    assert device.transport.closed


def test_large_transfers_are_split():
    device = canned(*([0x85000001 | n << 16, 0, 1] for n in range(3)))
    device.write_memory(Space.STATE, 5, np.arange(40_000, dtype=np.uint32))
    sent = device.transport.sent
    assert [packet[0] & 0xFFFF for packet in sent] == [16_384, 16_384, 7_232]
    assert [packet[1] for packet in sent] == [2 << 28 | 5, 2 << 28 | 16_389, 2 << 28 | 32_773]
    assert [word for packet in sent for word in packet[2:]] == list(range(40_000))


def test_memory_ranges_are_checked():
    device = canned()
    with pytest.raises(ValueError, match="Memory range must lie between 0 and 268435456, not 1 elements from -1 on"):
        device.read_memory(Space.GRADIENT, -1, 1)
    assert device.read_memory(Space.GRADIENT, 0, 0).size == 0
    assert device.transport.sent == []


def test_parameters():
    with pytest.raises(ValueError, match="Timeout must be at least 1 cycle, not 0"):
        Device(Canned(), NodeConfig(), timeout=0)
    with pytest.raises(ValueError, match="Ring size must be between 1 and 255 nodes, not 256"):
        PysimRing(lambda: None, nodes=256)
    with pytest.raises(ValueError, match="Link latency must be at least 1 cycle, not 0"):
        PysimRing(lambda: None, latency=0)
