"""Packets for link tests, and a function that offers them to a transmitter."""

from cocotb.triggers import RisingEdge

from tests.hdl.ring import packets as packets_of

PACKET_WORDS = 13


def random_packets(generator, count, *, longest=PACKET_WORDS):
    """Draw packets of at least two words, since the shortest stomped packet has a header and a trailer."""
    return [
        [generator.getrandbits(32) for _ in range(generator.choice([2, 4, longest, generator.randint(2, longest)]))]
        for _ in range(count)
    ]


def framed(packets):
    return [beat for words in packets for beat in packets_of.framed(words)]


async def starting(dut, packets, *, pattern):
    """Offer packets as the transmitter requires: the first word of a packet only while ``may_start`` is high."""
    edge = RisingEdge(dut.clk)
    valid, ready, payload = dut.i__valid, dut.i__ready, dut.i__payload
    for words in packets:
        for n, beat in enumerate(packets_of.framed(words)):
            while not next(pattern) or (n == 0 and not dut.may_start.value):
                valid.value = 0
                await edge
            valid.value = 1
            payload.value = beat["data"] | beat["last"] << 32
            await edge
            while not ready.value:
                await edge
    valid.value = 0
