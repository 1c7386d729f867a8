import cocotb
import pytest

from hdl.stream import Queue, word_layout
from sim import regression
from sim.streams import STALLS, Monitor, Sink, Source, stalls, start


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def keeps_order(dut):
    p = regression.parameters()
    await start(dut)
    source = Source(dut, "i", word_layout(), stalls=stalls(p["source"], seed=1))
    sink = Sink(dut, "o", word_layout(), stalls=stalls(p["sink"], seed=2))
    monitors = [Monitor(dut, "i", word_layout()), Monitor(dut, "o", word_layout())]
    beats = [{"data": n * 0x01010101, "last": n & 1} for n in range(100)]
    cocotb.start_soon(source.send(beats))
    assert await sink.receive(100) == beats
    assert monitors[0].beats == monitors[1].beats == beats


@pytest.mark.parametrize("depth", [1, 5])
def test_queue(depth):
    for a in STALLS:
        regression.run(Queue(shape=word_layout(), depth=depth), module=__name__, parameters={"source": a, "sink": "geometric"})
