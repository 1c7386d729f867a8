"""Run test benches in Amaranth's own simulator."""

from amaranth.sim import Simulator


def simulate(dut, *benches, clock=True, background=()):
    """Run test benches (functions of a simulation context) to completion, with optional background benches."""
    simulator = Simulator(dut)
    if clock:
        simulator.add_clock(1e-6)
    for bench in (*background, *benches):
        simulator.add_testbench(bench, background=bench in background)
    simulator.run()
