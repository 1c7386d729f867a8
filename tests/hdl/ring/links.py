"""Packets for tests of links, and the way in which a transmitter takes them."""

from cocotb.triggers import RisingEdge

PATIENCE = 20_000
PACKET_WORDS = 13


def random_packets(generator, count, *, longest=PACKET_WORDS):
    """No packet is shorter than a stomped one: a header word and a trailer."""
    return [
        [generator.getrandbits(32) for _ in range(generator.choice([2, 4, longest, generator.randint(2, longest)]))]
        for _ in range(count)
    ]


def framed(packets):
    return [{"data": word, "last": int(n == len(words) - 1)} for words in packets for n, word in enumerate(words)]


async def wait_for(dut, condition, what):
    edge = RisingEdge(dut.clk)
    for _ in range(PATIENCE):
        if condition():
            return
        await edge
    raise AssertionError(f"Not within {PATIENCE} cycles: {what}")


async def starting(dut, packets, *, pattern):
    """Offer packets as the transmitter wants them: the first word only while may_start is high."""
    edge = RisingEdge(dut.clk)
    valid, ready, payload = dut.i__valid, dut.i__ready, dut.i__payload
    for words in packets:
        for n, beat in enumerate(framed([words])):
            while not next(pattern) or (n == 0 and not dut.may_start.value):
                valid.value = 0
                await edge
            valid.value = 1
            payload.value = beat["data"] | beat["last"] << 32
            await edge
            while not ready.value:
                await edge
    valid.value = 0
