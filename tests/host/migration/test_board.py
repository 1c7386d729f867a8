"""A job that leaves a simulated board by its serial line, for a ring in this process."""

import contextlib
import dataclasses

from host.driver.ring import Ring
from host.migration.migrate import migrate
from host.migration.site import Fabric
from sim.verilated.board import RATES
from tests.host.board import devices_of, open_link
from tests.host.migration.sites import (
    DATA,
    MOMENTUM,
    advance,
    fabric_of,
    ledger_of,
    result,
    site_of,
    with_optimizer,
)


@contextlib.contextmanager
def board():
    with open_link() as (simulated, link):
        ring = Ring(devices_of(link), timeout=20_000)
        ring.connect()
        yield Fabric(ring, lambda: simulated.cycle)


def test_same_bits(tmp_path):
    """From nodes with one lane to such with four, whose optimizer takes four elements at a time."""
    config = with_optimizer(MOMENTUM, max_steps=3)
    small = dataclasses.replace(DATA, train_x=DATA.train_x[:, 24:40], test_x=DATA.test_x[:, 24:40])  # a short line
    here, there = (site_of(name, tmp_path, fabric, config=config, data=small)
                   for name, fabric in (("here", board), ("there", fabric_of("server", nodes=2))))
    try:
        there.begin()
        expected = result(there)
        there.scrub()
        here.begin()
        advance(here, 2)
        downtime = migrate(here, there, ledger_of(tmp_path, "here"))
        wire = downtime.live_words * 40 * 2 * RATES["clock"] // RATES["baud"]
        print(f"read from the board: {downtime.read:,} cycles, of which the words of two nodes take {wire:,} on the "
              f"line; on the target {downtime.cycles - downtime.read:,}")
        assert downtime.read >= wire
        assert result(there)[:3] == expected[:3]
    finally:
        here.close()
        there.close()
