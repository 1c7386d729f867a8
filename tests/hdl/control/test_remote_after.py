# amaranth: UnusedElaboratable=no
"""Commands that wait for other nodes, compared with a model with unbounded counts: hdl/control/remote_after.py."""

import random

import cocotb
import pytest
from amaranth.lib import data

from hdl.control.remote_after import RemoteAfter, remote_layout
from hdl.control.scoreboard import AFTER_MAX, others
from sim import regression
from sim.payload import to_int
from sim.streams import start
from tests.hdl.control.passes import Passes
from tests.hdl.control.units import lockstep, simulate
from tests.refusals import refused_values

NODES = 16


class Model(Passes):
    """Unbounded counts of the passes of this node's queues, and of commands completed in other nodes' queues."""

    def __init__(self, queues):
        super().__init__(queues)
        self.told = [[None] * queues for _ in range(NODES)]  # counts from SIGNALs; None until the node's run begins
        self.held = [0] * queues  # cycles since a head's dependencies last became met or unmet
        self.sizes, self.pairs, self.before = [3] * queues, None, None

    def missing(self, queue):
        pair = self.pairs[queue]
        number = self.passes[queue] - pair["lag"]
        if not pair["remote"] or not pair["after"] or number < 0:
            return False
        told = self.told[pair["unit"]][pair["queue"]]
        return (pair["after"] > AFTER_MAX or told is None
                or told < number * self.sizes[pair["queue"]] + pair["after"])

    def outputs(self, inputs):
        """Outputs in this cycle, compared only once all changes have had time to take effect."""
        settling, latency = self.queues + 2, self.queues + 1
        if self.stable < settling + 1 or min(self.held) <= latency:
            return {}
        return {"missing": sum(missing << n for n, missing in enumerate(self.before))}

    def step(self, inputs):
        now = [self.missing(queue) for queue in range(self.queues)]
        self.held = [held + 1 if self.before is not None and now[n] == self.before[n] else 0
                     for n, held in enumerate(self.held)]
        self.before = now
        self.advance(inputs)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def compares(dut):
    """The head command of each queue waits for a random node while the counts of all nodes increase."""
    p = regression.parameters()
    queues, generator = p["queues"], random.Random(p["seed"])
    prefix = "remote" if queues == 2 else "remote_3"
    await start(dut)
    model, seen = Model(queues), set()

    def random_pair():
        return {"after": generator.randrange(generator.choice([1, 3, 30, 1 << 16])), "lag": generator.randrange(4),
                "queue": generator.randrange(queues), "remote": int(generator.random() < .8),
                "unit": generator.randrange(NODES)}

    def needed(pair, passes):
        return max(passes - pair["lag"], 0) * model.sizes[pair["queue"]] + min(pair["after"], AFTER_MAX)

    def drive():
        # Answer with the count that was requested in the previous cycle.
        node, queue = (int(getattr(dut, f"{prefix}__of_{name}").value) for name in ("node", "queue"))
        told = model.told[node][queue] if queue < queues else 0
        clear, begins = model.pairs is None or generator.random() < .001, 0
        if clear:
            model.sizes = [generator.choice([1, 2, generator.randrange(1, 1025)]) for _ in range(queues)]
            model.told = [[None] * queues for _ in range(NODES)]
        elif model.stable > 16 and generator.random() < .1:
            begins = generator.getrandbits(queues)
        if clear or begins or (model.stable > 16 and generator.random() < .1):
            model.pairs = [random_pair() for _ in range(queues)]
            model.stable = 0
            for queue, pair in enumerate(model.pairs):
                # No node may lag by more than half of the counter range.
                counts = model.told[pair["unit"]]
                least = needed(pair, model.passes[queue] + (begins >> queue & 1)) - (1 << 14)
                if counts[pair["queue"]] is not None and counts[pair["queue"]] < least:
                    counts[pair["queue"]] = least
        elif model.stable > queues + 2 and generator.random() < .2:
            # Send a SIGNAL, often with exactly the count that some queue's head needs, or one less.
            pair = model.pairs[queue := generator.randrange(queues)]
            counts = model.told[pair["unit"]]
            if counts[pair["queue"]] is None:
                counts[:] = [0] * queues
            if pair["after"] <= AFTER_MAX:
                counts[pair["queue"]] = max(
                    needed(pair, model.passes[queue]) - generator.choice([0, 0, 1]), counts[pair["queue"]])
        if model.before is not None:
            seen.add(tuple(model.before))
        places = sum(to_int(data.ArrayLayout(16, queues - 1), [
            model.passes[n] * model.sizes[other] % 65_536 for other in others(n, queues)])
            << 16 * (queues - 1) * n for n in range(queues))
        return {"clear": int(clear), "begins": begins, "lengths": sum(size << 16 * n for n, size in enumerate(
                    model.sizes)),
                "early": sum(min(number, 3) << 2 * n for n, number in enumerate(model.passes)), "bases": places,
                "after": to_int(data.ArrayLayout(remote_layout(), queues), model.pairs),
                "current": int(told is not None), "count": (told or 0) % 65_536}

    await lockstep(dut, prefix, model, drive, p["cycles"])
    assert len(seen) == 1 << queues


@pytest.mark.parametrize(("queues", "cycles", "seed"), [(2, 8000, 1), (3, 8000, 2)])
def test_remote_after(queues, cycles, seed):
    simulate(__name__, "compares", queues=queues, cycles=cycles, seed=seed)


test_queues_are_checked = refused_values(RemoteAfter, {}, "queues", [1, 4, "2"],
                                         "Queue count must be between 2 and 3")
