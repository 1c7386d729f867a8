# amaranth: UnusedElaboratable=no
"""Compare the events of rejected commands with a model: order, status and detail."""

import random

import cocotb
from amaranth.lib import data

from hdl.control.command_checker import verdict_layout
from hdl.control.command_control import Rejection
from hdl.control.protocol import EventStatus, event_layout
from hdl.control.rejections import Rejections, rejection_layout
from sim import regression
from sim.payload import to_int
from sim.streams import start
from tests.hdl.control.units import QUEUES, lockstep, simulate
from tests.refusals import refused_values


def event_of(inputs):
    """Event for the first queue with a rejection, or None if there is no rejection."""
    for queue, rejection in enumerate(inputs["given"]):
        if rejection["rejected"]:
            status, detail = {
                Rejection.VERDICT: (inputs["why"]["status"], inputs["why"]["detail"]),
                Rejection.LINK_RESET: (EventStatus.LINK_RESET, 0),
                Rejection.FLAGS: (EventStatus.WAIT_TIMEOUT, rejection["missing"]),
                Rejection.AFTER: (EventStatus.AFTER_TIMEOUT, rejection["after"]),
                Rejection.STALE: (EventStatus.STALE, inputs["stale"]),
            }[rejection["reason"]]
            return {"tag": rejection["tag"], "status": int(status), "flags": 0, "queue": queue, "detail": detail,
                    "cycles": (rejection["count"] - 1) % (1 << 32), "weight_version": inputs["weight_version"]}
    return None


class Model:
    """Model of the events that the rejection unit offers."""

    def __init__(self):
        self.held, self.offered = {}, None

    def outputs(self, inputs):
        taken = self.offered is not None and inputs["o__ready"]
        return {"o__valid": int(self.offered is not None),
                "o__payload": None if self.offered is None else to_int(event_layout(), self.offered),
                "taken": int(taken) << self.offered["queue"] if taken else 0}

    def step(self, inputs):
        if self.offered is None:
            self.offered = event_of(self.held)
        elif inputs["o__ready"]:
            self.offered = None


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def reports_all(dut):
    """All rejections of one queue or of both at the same time are reported, even if events must wait to be accepted.
    """
    generator = random.Random(regression.parameters()["seed"])
    await start(dut)
    model, seen = Model(), set()

    def drive():
        # An offered event stays until it is accepted.
        held = model.held
        if model.offered is None:
            heads = [{"rejected": int(generator.random() < 0.4), "reason": generator.choice(list(Rejection)),
                      "tag": generator.getrandbits(16), "count": generator.choice([0, 1, generator.getrandbits(32)]),
                      "missing": generator.getrandbits(16), "after": generator.getrandbits(32)}
                     for _ in range(QUEUES)]
            held.update(given=heads, stale=generator.getrandbits(32), weight_version=generator.getrandbits(32), why={
                "status": generator.choice(list(EventStatus)), "detail": generator.getrandbits(32)})
            seen.add((tuple(head["rejected"] for head in heads), heads[0]["reason"]))
        return {"i": to_int(data.ArrayLayout(rejection_layout(), QUEUES), held["given"]),
                "verdict": to_int(verdict_layout(), held["why"]), "stale": held["stale"],
                "weight_version": held["weight_version"], "o__ready": generator.getrandbits(1)}

    await lockstep(dut, "rejections", model, drive, 3000)
    assert len(seen) == 4 * len(Rejection)


def test_rejections():
    simulate(__name__, "reports_all", seed=1)


test_queues_are_checked = refused_values(Rejections, {}, "queues", [0, 4, "2"], "Queue count must be between 1 and 3")
