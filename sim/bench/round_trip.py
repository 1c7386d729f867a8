"""Round trip of gradient codecs: latency in cycles from the first input beat to the first decoded beat.

Encoder and decoder are configured as on a link, with 4 elements per beat, and connected directly without stalls.
If nodes decode packets and encode them again, each hop of the ring adds the latency of this round trip, of the adder
and of the wires. ``python -m sim.bench.round_trip`` prints the figures.
"""

import json
from typing import Any

from amaranth.hdl import Elaboratable, Module
from amaranth.sim import Simulator

from hdl.compression.registry import GRADIENT_CODECS, ZERO_VALUE
from hdl.compression.words import WordDecoder, WordEncoder
from hdl.compression.zero_value.decoder import Decoder
from hdl.compression.zero_value.encoder import Encoder
from hdl.streams.stream import connect_stream

__all__ = ["LIMIT", "measure", "rows"]

LANES = 4
#: Number of beats in a packet: a segment of 256 elements.
BEATS = 64
#: Maximum latency in cycles from the encoder's input to the decoder's output.
LIMIT = 60


class _Loop(Elaboratable):
    """Measured design: an encoder connected to a decoder."""

    def __init__(self, name: str) -> None:
        codec = GRADIENT_CODECS[name]
        self.encoder: Any = Encoder(lanes=LANES) if name == ZERO_VALUE else WordEncoder(codec=codec, lanes=LANES)
        self.decoder: Any = Decoder(lanes=LANES) if name == ZERO_VALUE else WordDecoder(codec=codec, lanes=LANES)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.encoder, m.submodules.decoder = self.encoder, self.decoder
        connect_stream(m, self.encoder.o, self.decoder.i)
        m.d.comb += self.decoder.o.ready.eq(1)
        return m


def measure(name: str) -> tuple[int, int]:
    """Latency in cycles to the first and to the last decoded beat. All beats contain the numbers 1, 2, 3 and 4."""
    loop = _Loop(name)
    simulator = Simulator(loop)
    simulator.add_clock(1e-6)
    source, sink = loop.encoder.i, loop.decoder.o
    seen: list[int] = []

    async def testbench(ctx: Any) -> None:
        ctx.set(source.payload.keep, (1 << LANES) - 1)
        ctx.set(source.payload.elements, [0x3F80_0000, 0x4000_0000, 0x4040_0000, 0x4080_0000])
        sent = 0
        for cycle in range(10 * BEATS * LANES):
            ctx.set(source.valid, sent < BEATS)
            ctx.set(source.payload.last, sent == BEATS - 1)
            if ctx.get(sink.valid):
                seen.append(cycle)
                if ctx.get(sink.payload.last):
                    return
            sent += ctx.get(source.valid & source.ready)
            await ctx.tick()
        raise RuntimeError(f"Codec {name} must decode its packet, and has given {len(seen)} of {BEATS} beats")

    simulator.add_testbench(testbench)
    simulator.run()
    return seen[0], seen[-1]


def rows() -> list[dict[str, Any]]:
    """Rows for ``make bench``: the measured cycles and the limit."""
    result = []
    for name, codec in GRADIENT_CODECS.items():
        if codec.agreed:  # integer codecs have no separate encoder and decoder
            continue
        first, last = measure(name)
        result.append({"name": "codec.round_trip", "config": f"{name}, 4 lanes; {last} to the packet's last beat",
                       "measured": first, "bound": LIMIT, "ratio": first / LIMIT, "unit": "cycles"})
    return result


if __name__ == "__main__":
    print(json.dumps(rows(), indent=1))
