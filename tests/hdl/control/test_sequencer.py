# amaranth: UnusedElaboratable=no
"""Sequencer of program commands, compared with a model in every cycle."""

import random

import cocotb

from hdl.control.sequencer import Sequencer, pass_layout, run_layout
from sim import regression
from sim.payload import to_int
from sim.streams import start
from tests.hdl.control.units import PROGRAM_DEPTH, lockstep, simulate
from tests.refusals import refused_values


class Model:
    """Model of a sequencer: the list of all commands of a run, and an index into it."""

    def __init__(self):
        self.left, self.length, self.passes, self.base, self.step_of, self.odd, self.first = 0, 1, 0, 0, 0, 0, 0
        self.fields = {}  # fields of the run that is about to start

    @property
    def place(self):
        return self.passes * self.length - self.left

    def outputs(self, inputs):
        active = self.left > 0
        over = self.left % self.length == 1 or self.length == 1
        number = self.place // self.length
        current = {"odd": (self.odd ^ number) & 1, "collective": (self.base + number * self.step_of) & 0xFFFF,
                   "number": (self.first + number) & 0xFFFF}
        return {
            "active": active,
            "slot": self.place % self.length if active else None,
            "passes": -(-self.left // self.length),
            "current": to_int(pass_layout(), current) if active else None,
            "begins": active and inputs["advance"] and over and self.left > self.length and not inputs["stop"],
        }

    def step(self, inputs):
        if inputs["start"]:
            run = self.fields
            self.passes, self.length = run["passes"], max(inputs["length"], 1)
            self.left = self.passes * inputs["length"]
            self.base, self.step_of, self.odd = run["collective"], run["collectives"], run["parity"]
            self.first = run["first"]
        elif inputs["stop"]:
            self.left = 0
        elif inputs["advance"] and self.left:
            self.left -= 1


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def goes_through_programs(dut):
    generator = random.Random(regression.parameters()["seed"])
    await start(dut)
    model = Model()
    state = {"length": 1, "run": 0, "since": 0}

    def drive():
        begin = not model.left and generator.random() < 0.2
        if begin:
            model.fields.update(passes=generator.randrange(5), model=0, parity=generator.getrandbits(1), number=0,
                          reserved_0=0, rank=0, size=0, first=generator.choice([0, 0xFFFE, 7]), reserved_2=0,
                          collective=generator.getrandbits(16), collectives=generator.getrandbits(16))
            state.update(length=generator.randrange(PROGRAM_DEPTH + 1), run=to_int(run_layout(), model.fields))
        # A command arrives after at least two cycles.
        advance = not begin and state["since"] > 1 and generator.random() < 0.6
        state["since"] = 0 if begin or advance else state["since"] + 1
        return {"start": begin, "advance": advance, "stop": not begin and generator.random() < 0.01,
                "length": state["length"], "run": state["run"]}

    await lockstep(dut, "sequencer", model, drive, 4000)


def test_sequencer():
    simulate(__name__, "goes_through_programs", seed=5)


test_depth_is_checked = refused_values(Sequencer, {}, "depth", [0, 1025, "8"],
                                       "Program depth must be between 1 and 1024")
