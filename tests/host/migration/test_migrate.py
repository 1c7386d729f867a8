# amaranth: UnusedElaboratable=no
"""Training jobs that migrate between simulated rings: bit-identical results, and downtime."""

import pytest

from host.checkpoints.rejections import TooSmallError
from host.migration.migrate import Entry, LedgerError, migrate
from tests.host.migration.sites import (
    ADAM,
    MOMENTUM,
    advance,
    fabric_of,
    few,
    ledger_of,
    result,
    site_of,
    with_optimizer,
)
from tests.refusals import refuses


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_same_bits(tmp_path, optimizer, nodes):
    """A run of 24 steps with mx9 gradients and weights moves to a ring with other latencies and threads after steps
    0, 1, 11 and 23, even in the middle of an epoch, and moves back each time."""
    config = with_optimizer(optimizer)
    here = site_of("here", tmp_path, fabric_of("mx9", nodes=nodes), config=config)
    there = site_of("there", tmp_path, fabric_of("mx9", nodes=nodes, latency=37, threads=2), config=config)
    try:
        here.begin()
        expected = result(here)
        here.scrub()
        ledger = ledger_of(tmp_path, "here")
        here.begin()
        source, target, done = here, there, 0
        for after in (0, 1, 11, 23):
            advance(source, after - done)
            downtime = migrate(source, target, ledger)
            print(f"{nodes} nodes, after step {after}: {downtime.cycles:,} cycles of {downtime.bound:,.0f} for "
                  f"{downtime.live_words:,} words a node: {downtime}")
            assert downtime.cycles <= downtime.bound
            assert (source.running, target.running, source.path.exists()) == (False, True, False)
            source, target, done = target, source, after
        assert ledger.read() == Entry("here", 4)
        *bits, versions = result(source)
        assert bits == list(expected[:3])
        # The update count moved with the job. It counts 24 steps and the distribution of initial weights.
        assert versions == [25] * nodes
    finally:
        here.close()
        there.close()


def test_to_nodes_of_another_kind(tmp_path):
    """Nodes of other kinds compute the same bits: with other segments and memories, and a server that has its weights
    in far memory and an optimizer for four elements at a time. Nodes without a settable update count catch up with
    the job's count; nodes with a higher count are rejected, and the job continues."""
    config = with_optimizer(MOMENTUM, max_steps=8)
    here, there = (site_of(name, tmp_path, fabric_of(name, nodes=2), config=config) for name in ("default", "server"))
    try:
        here.begin()
        expected = result(here)
        here.scrub()
        here.begin()
        ledger = ledger_of(tmp_path, "default")
        advance(here, 3)
        migrate(here, there, ledger)
        advance(there, 2)
        migrate(there, here, ledger)
        assert [device.read_register("WEIGHT_VERSION") for device in here.open().devices] == [13] * 2
        advance(here, 1)
        migrate(here, there, ledger)
        here.open().collectives.broadcast(32, root=0)
        refuses("TOO_SMALL: node 0 must have a WEIGHT_VERSION that can be written, as nodes with SettableVersion "
                "have, or one that is as far from that of the checkpoint as on other nodes, and at most 65,536 below "
                "it", migrate, there, here, ledger, error=TooSmallError)
        assert (here.running, there.running, ledger.read().owner) == (False, True, "server")
        assert list(result(there)[:3]) == list(expected[:3])
    finally:
        here.close()
        there.close()


def test_refused(tmp_path):
    """A site can hand over a job only if it owns and runs the job, and jobs that cannot move are rejected."""
    here, there = (site_of(name, tmp_path, None) for name in ("here", "there"))
    with pytest.raises(LedgerError, match=r"ledger\.json must be a ledger, with the owner of a job and a number$"):
        migrate(here, there, ledger_of(tmp_path / "other", "here").__class__(tmp_path / "ledger.json"))
    refuses("Source must run the job and own it, not here, while the ledger names there", migrate, here, there,
            ledger_of(tmp_path, "there"), error=LedgerError)
    with pytest.raises(ValueError, match=r"^Job to be migrated must have no schedule, and a host that computes$"):
        site_of("here", tmp_path, None, config=with_optimizer(MOMENTUM, overlap="delayed:1"), data=few())
