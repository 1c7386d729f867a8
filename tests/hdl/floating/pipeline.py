"""Checks of a unit without handshakes: one result per cycle, at its latency, with or without a reset."""

import cocotb
import numpy as np

from sim import regression
from sim.streams import cycles, start
from sim.verilated.native import Arithmetic
from sim.verilated.vectors import Unit


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def one_result_per_cycle(dut):
    """The result of one cycle's inputs is on the outputs after `latency` edges, for one cycle.

    A reset halfway through neither clears nor stops the pipeline.
    """
    parameters = regression.parameters()
    latency, inputs, outputs = (parameters[key] for key in ("latency", "inputs", "outputs"))
    count = len(next(iter(inputs.values())))
    await start(dut)
    for n in range(count + latency):
        if n < count:
            for name, values in inputs.items():
                getattr(dut, name).value = values[n]
        if n == count // 2:
            dut.rst.value = 1
        await cycles(dut, 1)
        if n >= latency:
            for name, values in outputs.items():
                assert int(getattr(dut, name).value) == values[n - latency], f"{name} of cycle {n - latency}"


def check(component, inputs, outputs):
    """Apply arrays of inputs, one row per cycle, and compare the outputs with the given arrays."""
    def lists(arrays):
        return {name: [int(value) for value in values] for name, values in arrays.items()}

    regression.run(component, module=__name__, parameters={
        "latency": component.latency, "inputs": lists(inputs), "outputs": lists(outputs)})


def in_turns(component, inputs, *, arithmetic=Arithmetic.GATEWARE):
    """Results of a unit that takes operands every ``interval`` cycles, on Verilator, with noise in between."""
    interval, latency = component.interval, component.latency
    count = len(next(iter(inputs.values())))
    cycles = count * interval + -(-latency // interval) * interval
    generator = np.random.default_rng(count)
    rows = {"load": (np.arange(cycles) % interval == 0).astype(np.uint8)}
    for name, values in inputs.items():
        rows[name] = generator.integers(1 << component.format.width, size=cycles, dtype=np.uint32)
        rows[name][:count * interval:interval] = values
    return Unit(component, arithmetic=arithmetic).run(rows)["o"][latency:][:count * interval:interval]


def simulate(unit, latency, a, b):
    """Results of a unit with two operands, from the first one on."""
    return unit.run({"a": a, "b": b}, drain=latency)["o"][latency:]
