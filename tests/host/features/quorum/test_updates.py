"""Stragglers that are removed from their ring: host/features/quorum/updates.py."""

import dataclasses
import io

import pytest

from host.driver.ring import Ring
from host.features.quorum import report
from host.features.quorum.config import Late, LateConfig
from host.features.quorum.updates import make_quorum_trainer
from host.plain_text import PlainConsole
from sim.link_faults import RandomFaults
from tests.host.features.grid.grids import ROUNDS, open_grid

#: Number of updates in a block.
BLOCK = 4


def train(data, config, *, state=None, keep=lambda state: None):
    """Train on a row of nodes, optionally from a saved state; call ``keep`` with the state after each block."""
    with open_grid(1, config.workers, config=ROUNDS, faults=RandomFaults(rate=1e-4, seed=2)) as (grid, _):
        run = make_quorum_trainer(Ring(grid.devices), data, config, block=BLOCK, grid=grid)
        if state is None:
            run.begin()
        else:
            run.resume(state)
        run.train(on_block=lambda: keep(run.state()))
    return run.executor


@pytest.fixture(scope="module")
def config():
    return LateConfig(late=Late.DROP, slow={1: 4, 3: 1.2}, quorum=3, skew=0.9, batch=4, hidden=(8,), macs=1,
                      cycles=90_000, seed=3)


def test_switch_out(data, config, tmp_path):
    """A straggler leaves the ring with its pending gradients. The remaining workers continue and match the golden
    model, and a run resumed afterwards is bit-identical."""
    states = []
    run = train(data, config, keep=states.append)
    assert run.left_after == {1: BLOCK}
    assert len(run.statuses) > BLOCK + 1
    assert {status.on_time for status in run.statuses} == {0b1101}
    assert not any(status.dropped for status in run.statuses[BLOCK + 1:])
    gone = run.counts()[1]
    assert gone["computed"] == gone["dropped"] > 0
    assert run.pending()[1] == []
    again = train(data, config, state=states[0])
    assert (again.left_after, again.statuses, again.counts()) == (run.left_after, run.statuses, run.counts())
    assert again.outcome.losses == run.outcome.losses
    assert (again.state()["master"] == run.state()["master"]).all()
    content = report.build(config, run)
    assert content["switched_out"] == [{"worker": 1, "after": BLOCK}]
    console = PlainConsole(file=io.StringIO())
    report.show(content, console)
    assert f"worker 1 was switched out after {BLOCK} updates\n" in console.file.getvalue()
    report.draw(content, tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 10_000


def test_none_would_be_left(data, config):
    """A ring of two workers keeps both, however slow one of them is."""
    run = train(data, dataclasses.replace(config, workers=2, slow={1: 4}, quorum=1, cycles=120_000))
    assert run.left_after == {}
    assert "rounds from 4 on: no ring would be left without workers 1, so they stay" in run.stragglers
