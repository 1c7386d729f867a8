# amaranth: UnusedElaboratable=no
import itertools
import random

import cocotb
import pytest
from cocotb.triggers import FallingEdge, RisingEdge

from hdl.serial.uart import UartReceiver, UartTransmitter
from sim import regression
from sim.streams import Source, cycles, stalls, start
from tests.refusals import refused

RATES = [(4, 1), (48_000_000, 3_000_000), (50_000_000, 3_000_000), (60_000_000, 3_000_000)]


def edges(values, period, *, generator=None, jitter=0.0, gaps=None):
    """Return the bits on the wire and the cycles in which they end; gaps between bytes are given in bit times."""
    now, wire = 0.0, []
    for value in values:
        idle = 0 if gaps is None else next(gaps)
        for bit in [*[1] * idle, 0, *(value >> n & 1 for n in range(8)), 1]:
            now += period
            wire.append((bit, now + (0 if generator is None else generator.uniform(-jitter, jitter) * period)))
    return wire


async def drive(dut, wire):
    edge = RisingEdge(dut.clk)
    cycle = 0
    for bit, end in wire:
        while cycle < end:
            dut.rx.value = bit
            await edge
            cycle += 1
    dut.rx.value = 1


async def listen(dut, values, errors):
    edge = FallingEdge(dut.clk)
    while True:
        await edge
        if dut.received.value:
            values.append(int(dut.value.value))
        errors.append(int(dut.framing_error.value))


async def start_receiver(dut):
    dut.rx.value = 1
    await start(dut)
    await cycles(dut, 8)
    values, errors = [], []
    cocotb.start_soon(listen(dut, values, errors))
    return values, errors


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def receives(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    values, errors = await start_receiver(dut)
    period = p["clock"] / p["baud"]
    for drift, jitter, gaps in ((1, 0, None), (0.98, 0, None), (1.02, 0, None), (1, 0.02, None),
                                (0.98, 0.02, iter(lambda: generator.randrange(3), None))):
        sent = [0x00, 0xFF, 0x55, 0xAA, *(generator.randrange(256) for _ in range(p["bytes"]))]
        values.clear()
        await drive(dut, edges(sent, period * drift, generator=generator, jitter=jitter, gaps=gaps))
        await cycles(dut, int(3 * period) + 8)
        assert values == sent, (drift, jitter, p["seed"])
    assert not any(errors)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def refuses_what_is_no_byte(dut):
    p = regression.parameters()
    period = p["clock"] / p["baud"]
    values, errors = await start_receiver(dut)
    # The wire has noise for one sample, followed by a start bit that is too short.
    for length in (1, int(period * 0.3)):
        await drive(dut, [(0, length), (1, length + 12 * period)])
        assert values == []
    assert not any(errors)
    # The stop bit is low, for one bit time and for many bit times.
    for length in (1, 25):
        errors.clear()
        wire = edges([0x5A], period)[:-1]
        end = wire[-1][1]
        await drive(dut, [*wire, (0, end + length * period), (1, end + (length + 2) * period)])
        assert values == []
        assert sum(errors) == 1
        await drive(dut, edges([0xC3], period))
        await cycles(dut, 8)
        assert values == [0xC3]
        assert sum(errors) == 1
        values.clear()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def transmits(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await start(dut)
    period = p["clock"] / p["baud"]
    levels = []

    async def watch():
        edge = FallingEdge(dut.clk)
        while True:
            await edge
            levels.append(int(dut.tx.value))

    cocotb.start_soon(watch())
    for pattern in ("none", "freeze"):
        sent = [0x00, 0xFF, 0x55, *(generator.randrange(256) for _ in range(p["bytes"]))]
        source = Source(dut, "i", 8, stalls=stalls(pattern, seed=p["seed"]))
        await cycles(dut, int(12 * period))
        assert not dut.busy.value
        levels.clear()
        await source.send(sent)
        await cycles(dut, int(12 * period))
        assert not dut.busy.value
        begin = levels.index(0)
        if pattern == "none":
            # All edges are within one cycle of their ideal time: there are no gaps, and errors do not accumulate.
            ideal = edges(sent, period)
            got = [n - begin for n, (level, other) in enumerate(itertools.pairwise(levels), start=1) if level != other
                   if n > begin]
            due = [end for (bit, end), (following, _) in itertools.pairwise(ideal) if bit != following]
            assert len(got) == len(due)
            assert max(abs(edge - time) for edge, time in zip(got, due, strict=True)) <= 1
        received, position = [], 0
        while 0 in levels[position:]:
            position = levels.index(0, position)
            bits = [levels[position + int((n + 0.5) * period)] for n in range(10)]
            assert (bits[0], bits[9]) == (0, 1)
            received.append(sum(bit << n for n, bit in enumerate(bits[1:9])))
            position += int(9.5 * period)
        assert received == sent, p["seed"]


def parameters(clock, baud, seed):
    return {"clock": clock, "baud": baud, "seed": seed, "bytes": max(4, 400 * baud // clock)}


@pytest.mark.parametrize(("clock", "baud"), RATES)
def test_receiver(clock, baud):
    regression.run(UartReceiver(clock=clock, baud=baud), module=__name__,
                   testcase=["receives", "refuses_what_is_no_byte"], parameters=parameters(clock, baud, 11))


@pytest.mark.parametrize(("clock", "baud"), RATES)
def test_transmitter(clock, baud):
    regression.run(UartTransmitter(clock=clock, baud=baud), module=__name__, testcase="transmits",
                   parameters=parameters(clock, baud, 12))


test_parameters_of_receiver, test_parameters_of_transmitter = (refused(unit, {"clock": 4, "baud": 1}, [
    ({"clock": 0}, "Clock must be a positive integer, not 0"),
    ({"clock": 4.0}, "Clock must be a positive integer, not 4.0"),
    ({"baud": -1}, "Baud rate must be a positive integer, not -1"),
    ({"clock": 11_999_999, "baud": 3_000_000}, "Baud rate must be at most 2999999, a 4th of the clock, not 3000000"),
]) for unit in (UartReceiver, UartTransmitter))
