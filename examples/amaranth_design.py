"""Use a gradring unit in your own Amaranth design: compress a stream of floats, dropping small ones.

``Sparsifier`` sets every element below a threshold to zero and passes the result to the zero-value encoder. It is
simulated with Amaranth's simulator, with stalls on both sides, and compared with numpy bit for bit. Then it is
exported as Verilog with AXI4-Stream ports. Run it with ``python examples/amaranth_design.py``.
"""

import pathlib

import numpy as np
from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from gradring import gateware

LANES = 4
LIMIT = 20_000  # cycle limit, in case the design hangs


class Sparsifier(wiring.Component):
    """Compress a stream of floats, treating magnitudes below a threshold as zeros.

    Members
    -------
    threshold : In(31)
        Bits of a positive binary32 number, without the sign bit.
    i : In(stream of {elements, keep, last})
    o : Out(stream of {data, last})
    kept : Out(32)
        Number of elements not set to zero since reset.
    """

    def __init__(self, *, lanes):
        self._lanes = lanes
        super().__init__({
            "threshold": In(31),
            "i": In(stream.Signature(gateware.beat_layout(lanes))),
            "o": Out(stream.Signature(gateware.word_layout())),
            "kept": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.encoder = encoder = gateware.ZeroValueEncoder(lanes=self._lanes)
        gateware.connect_stream(m, self.i, encoder.i)
        large = Signal(self._lanes)
        for lane, element in enumerate(self.i.payload.elements):
            # Without the sign bit, floats are ordered like their bit patterns.
            m.d.comb += [
                large[lane].eq((element[:31] >= self.threshold) & self.i.payload.keep[lane]),
                encoder.i.payload.elements[lane].eq(Mux(large[lane], element, 0)),
            ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += self.kept.eq(self.kept + sum(large))
        gateware.connect_stream(m, encoder.o, self.o)
        return m


def expected(vector, threshold):
    """Return the expected words for a vector: for each group of 32 elements, a mask and the kept elements."""
    words = []
    for group in np.split(vector, range(32, len(vector), 32)):
        kept = np.abs(group) >= threshold
        words.append(np.uint32(sum(1 << index for index in np.flatnonzero(kept))))
        words.extend(group[kept].view(np.uint32))
    return words


def simulate(vectors, threshold, *, seed):
    """Run vectors through the design; return the output words, the number of kept elements and the cycle count."""
    design = Sparsifier(lanes=LANES)
    simulator = Simulator(design)
    simulator.add_clock(1e-8)
    results, counts = [], {"cycles": 0}
    pauses = np.random.default_rng(seed)

    async def send(ctx):
        ctx.set(design.threshold, int(threshold.view(np.uint32)))
        for vector in vectors:
            for first in range(0, len(vector), LANES):
                beat = [int(element) for element in vector[first:first + LANES].view(np.uint32)]
                await ctx.tick().repeat(int(pauses.geometric(0.5)))
                ctx.set(design.i.payload, {"elements": beat + [0] * (LANES - len(beat)), "keep": (1 << len(beat)) - 1,
                                           "last": first + LANES >= len(vector)})
                ctx.set(design.i.valid, 1)
                await ctx.tick().until(design.i.ready)
                ctx.set(design.i.valid, 0)

    async def receive(ctx):
        for _ in vectors:
            words, last = [], 0
            while not last:
                ctx.set(design.o.ready, int(pauses.integers(2)))
                tick = ctx.tick().sample(design.o.valid, design.o.ready, design.o.payload)
                _, _, valid, ready, payload = await tick
                counts["cycles"] += 1
                if counts["cycles"] > LIMIT:
                    raise RuntimeError(f"Nothing has come out of the design for vector {len(results)}")
                if valid and ready:
                    words.append(payload.data)
                    last = payload.last
            results.append(words)
        counts["kept"] = ctx.get(design.kept)

    simulator.add_testbench(send)
    simulator.add_testbench(receive)
    simulator.run()
    return results, counts


def main():
    generator = np.random.default_rng(0)
    vectors = [generator.standard_normal(length).astype(np.float32) for length in (1, 32, 100, 333)]
    print("threshold   kept   words, of raw ones   cycles")
    for threshold in np.float32([0.5, 1, 2]):
        results, counts = simulate(vectors, threshold, seed=1)
        due = [expected(vector, threshold) for vector in vectors]
        if results != due:
            raise SystemExit("Words differ from numpy's")
        raw, words = sum(map(len, vectors)), sum(map(len, results))
        print(f"{threshold:9}   {counts['kept']:4}   {words:5}, {words / raw:9.1%}    {counts['cycles']:6,}")
    print(f"{len(vectors)} vectors for each threshold: all words equal to numpy's, bit for bit")

    path = pathlib.Path("build/examples/sparsifier.v")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(gateware.wrap(Sparsifier(lanes=LANES), name="sparsifier").text)
    print(f"{path}: Verilog with AXI4-Stream ports")


if __name__ == "__main__":
    main()
