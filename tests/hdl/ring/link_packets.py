# amaranth: UnusedElaboratable=no
"""Packets as a link has them, whose words nothing else looks at."""

from cocotb.triggers import RisingEdge

PATIENCE = 20_000

SEGMENTS = 3

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
