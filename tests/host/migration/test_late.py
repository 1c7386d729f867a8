# amaranth: UnusedElaboratable=no
"""Migration between nodes while late gradients are pending for a quorum update."""

import numpy as np

from host.checkpoints.checkpoint import ProcessFrame, make, restore
from host.checkpoints.device_frame import read
from host.features.quorum.config import Late, LateConfig
from host.features.quorum.feeding import QuorumProgram
from host.features.quorum.updates import make_quorum_trainer
from sim.golden.ring import largest_block
from tests.host.migration.sites import few
from tests.host.rings import CONFIGS, open_nodes

KEY = b"k" * 32
CONFIG = LateConfig(workers=3, late=Late.APPLY, slow={1: 3}, quorum=2, skew=0.9, batch=4, hidden=(), macs=1,
                    cycles=150_000, seed=3)


def train(nodes):
    """Train in blocks of three updates. Each block uses a new ring, simulated with the number of threads that is next
    in ``nodes``."""
    state = data = None
    pending = []
    for threads in nodes:
        with open_nodes(3, config=CONFIGS["wide"], threads=threads, timeout=60_000) as (ring, _):
            run = make_quorum_trainer(ring, few(), CONFIG, block=3)
            if data is None:
                run.begin()
            else:
                state, _ = restore(data, ring, key=KEY)
                run.resume(state, restored=True)
            while not run.complete:
                run.advance()
                if len(nodes) > 1:
                    break
            length = len(run.state()["master"])
            block = largest_block(length, 3)
            slots = 3 * QuorumProgram(nodes=3, length=length, durations=[0] * 3).stride
            live = {"weights": [(0, length)], "masters": [(0, block)], "state_0": [(0, block)],
                    "gradients": [(0, slots)], "scales": [(0, 512)]}
            if not run.complete:
                frame = read(ring, live)
                waiting = [[bits & 0xFFFF for bits in node["slots"] if bits >> 17 & 1]
                           for node in frame.fields["nodes"]]
                assert [sorted(steps) for steps in waiting] == [sorted(steps) for steps in run.executor.pending()]
                pending.append(sum(map(len, waiting)))
                data = make(ProcessFrame(state=run.state()), frame, key=KEY)
            else:
                break
    assert run.complete
    return run, pending


def test_same_bits():
    whole, _ = train([1])
    moved, pending = train([1, 2] * 20)
    print("pending gradients at each move:", pending)
    assert sum(pending) > 0
    assert moved.executor.statuses == whole.executor.statuses
    assert moved.executor.counts() == whole.executor.counts()
    actual, expected = moved.state(), whole.state()
    assert (actual["master"] == expected["master"]).all()
    assert all(np.array_equal(item, other) for item, other in zip(actual["state"], expected["state"], strict=True))
    assert moved.executor.outcome.losses == whole.executor.outcome.losses
    assert any(late for item in whole.executor.statuses for late in [item.late])
