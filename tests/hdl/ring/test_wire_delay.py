# amaranth: UnusedElaboratable=no
import numpy as np
import pytest

from hdl.features.replay.signature import ReplayLinkSignature
from hdl.ring.link import LinkSignature
from hdl.ring.wire_delay import WireDelay
from tests.hdl import pysim

NAMES = {LinkSignature: ("data", "last"), ReplayLinkSignature: ("data", "last", "kind", "check")}


@pytest.mark.parametrize("signature", NAMES)
def test_delays(signature):
    """Words arrive in order, one per cycle, each after its delay; no word is lost if the delay changes."""
    dut = WireDelay(signature=signature())
    generator = np.random.default_rng(1)
    delays = (0, 1, 2, 255, 3, 48, 0, 17)
    cycles, sent, came = 600, [], []

    async def bench(ctx):
        cycle = 0
        for delay in delays:
            ctx.set(dut.delay, delay)
            for number in range(cycles):
                valid = number < 300 and (number < 100 or generator.random() < 0.5)
                ctx.set(dut.i.valid, int(valid))
                word = {name: int(generator.integers(1 << len(getattr(dut.i, name)))) for name in NAMES[signature]}
                for name, value in word.items():
                    ctx.set(getattr(dut.i, name), value)
                if valid:
                    sent.append((cycle, word))
                if ctx.get(dut.o.valid):
                    came.append((cycle, {name: ctx.get(getattr(dut.o, name)) for name in NAMES[signature]}))
                await ctx.tick()
                cycle += 1

    pysim.simulate(dut, bench)
    assert [word for _, word in came] == [word for _, word in sent]
    # A new delay applies after 256 idle cycles, so the first words after a change still have the previous delay.
    for (begun, _), (arrived, _) in zip(sent, came, strict=True):
        number = begun // cycles
        assert arrived - begun == (delays[number - 1] if number else 0)


def test_back():
    """Return wires are not delayed."""
    dut = WireDelay(signature=LinkSignature())

    async def bench(ctx):
        for value in (1, 0, 1):
            ctx.set(dut.o.credit, value)
            assert ctx.get(dut.i.credit) == value

    pysim.simulate(dut, bench)
