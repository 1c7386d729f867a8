# amaranth: UnusedElaboratable=no
"""Compare region versions with a model, and prove that each command gets the right version."""

import random

import cocotb
import pytest
from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.features.programs.region_versions import REGIONS_MAX, RegionVersions, region_layout
from sim import formal, regression
from sim.payload import to_int
from sim.streams import start
from tests.hdl.control.units import lockstep, simulate
from tests.refusals import refused_values

REGIONS = 5


class Model:
    """Model of the version of each weight copy; it also counts how long its inputs have been stable."""

    def __init__(self):
        self.versions = {}
        self.sweep = 0
        self.update = None
        self.stable = 0
        self.before = None
        self.since = 0  # number of cycles since the last update ended

    @staticmethod
    def copy(region, *, other=False):
        return region["region"], region["apart"] & (region["odd"] ^ other)

    def outputs(self, inputs):
        head, number = inputs["region"], inputs["number"]
        same = self.before == (head, number)
        if not same or self.stable < RegionVersions.settling or self.since < RegionVersions.latency or self.sweep:
            return {"busy": int(self.sweep > 0)}
        version = self.versions.get(self.copy(head), 0)
        expected = max(number - 1, 0) if head["apart"] else number
        return {"busy": 0, "version": version, "expected": expected,
                "right": int(version == expected or head["region"] == 0)}

    def step(self, inputs):
        now = inputs["region"], inputs["number"]
        self.stable = self.stable + 1 if now == self.before else 1
        self.before = now
        self.since += 1
        if inputs["begun"]:
            self.update = inputs["updated"]
            self.stable = min(self.stable, RegionVersions.settling - 1)
        if inputs["ended"]:
            source = self.versions.get(self.copy(self.update, other=bool(self.update["apart"])), 0)
            self.versions[self.copy(self.update)] = (source + 1) % (1 << 16)
            self.since = 1
        if inputs["clear"]:
            self.sweep, self.versions, self.stable = 2 * (REGIONS + 1), {}, 0
        elif self.sweep:
            self.sweep -= 1
            self.stable = 0


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def counts_updates(dut):
    """Updates of all regions are counted in even and odd passes, while the commands at the queue heads change."""
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await start(dut)
    model, running, waited, seen = Model(), False, 9, set()
    state = {"region": {"region": 0, "apart": 0, "odd": 0}, "number": 0, "first": True}

    def region():
        return {"region": generator.randrange(REGIONS + 1), "apart": generator.getrandbits(1),
                "odd": generator.getrandbits(1)}

    def drive():
        nonlocal running, waited
        begun = ended = 0
        clear = state["first"] or (not running and not model.sweep and generator.random() < 0.002)
        state["first"] = False
        waited += 1
        updated = region()
        if not clear and not model.sweep and waited >= 2:
            if not running and generator.random() < 0.3:
                begun, running, waited = 1, True, 0
            elif running and generator.random() < 0.3:
                ended, running, waited = 1, False, 0
        if generator.random() < 0.15:
            state["region"] = region()
            version = model.versions.get(model.copy(state["region"]), 0)
            state["number"] = max(0, version + generator.choice([0, 0, 1, -1, 5]))
        expected = model.outputs(state)
        seen.add((expected.get("right"), state["region"]["apart"]))
        return {"clear": int(clear), "begun": begun, "ended": ended, "head": to_int(region_layout(), state["region"]),
                "number": state["number"], "update": to_int(region_layout(), updated), "_": updated}

    class Packed:
        """Connects the model to ports that are packed into integers."""

        @staticmethod
        def outputs(inputs):
            return model.outputs(state)

        @staticmethod
        def step(inputs):
            model.step({**inputs, **state, "updated": drive.updated})

    def ports():
        inputs = drive()
        drive.updated = inputs.pop("_")
        return inputs

    await lockstep(dut, "versions", Packed, ports, p["cycles"])
    assert {(right, apart) for right in (0, 1) for apart in (0, 1)} <= seen


class Known(wiring.Component):
    """Specification: the version of any region equals the number of updates of the region."""

    region: In(range(REGIONS_MAX + 1))
    odd: In(1)
    begun: In(1)
    ended: In(1)
    update: In(region_layout())

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = RegionVersions(regions=3)
        region, count = Signal.like(self.region), Signal(16)
        running, own = Signal(), Signal()
        age, stable, sweeps = Signal(2), Signal(range(RegionVersions.settling + 1)), Signal(range(2))
        before = Signal(region_layout())
        m.d.sync += [region.eq(self.region), sweeps.eq(1), age.eq(age + (age != 3))]
        m.d.comb += [
            unit.clear.eq(sweeps == 0), unit.head.region.eq(self.region), unit.begun.eq(self.begun),
            unit.ended.eq(self.ended), unit.update.eq(self.update), Assume(~ResetSignal()),
            Assume((self.region == region) | (sweeps == 0)), Assume((self.region != 0) & (self.region <= 3)),
            Assume((self.update.region != 0) & (self.update.region <= 3) & ~self.update.apart),
            Assume(~self.begun | (~running & (age >= 2) & ~unit.busy & (sweeps == 1))),
            Assume(~self.ended | (running & (age >= 1))),
        ]
        with m.If(self.begun):
            m.d.sync += [running.eq(1), own.eq(self.update.region == self.region), age.eq(0)]
        with m.If(self.ended):
            m.d.sync += [running.eq(0), count.eq(count + own), age.eq(0)]
        m.d.sync += before.eq(unit.head)
        with m.If(self.begun | self.ended | unit.busy | (sweeps == 0)):
            m.d.sync += stable.eq(0)
        with m.Elif(stable != RegionVersions.settling):
            m.d.sync += stable.eq(stable + 1)
        known = stable == RegionVersions.settling
        m.d.comb += Assert(~known | ((unit.version == count) & (unit.right == (count == 0))))
        return m


def test_known():
    """Prove, starting from reset, that a region's version is the number of its updates."""
    formal.prove(Known(), depth=18, mode="bmc")


@pytest.mark.parametrize("seed", [1])
def test_region_versions(seed):
    simulate(__name__, "counts_updates", cycles=8000, seed=seed)


test_regions_are_checked = refused_values(RegionVersions, {}, "regions", [0, 64, True, "3"],
                                          "Region count must be between 1 and 63")
