# amaranth: UnusedElaboratable=no
"""A migrated job's downtime is at most three passes over its live words plus 4,000 cycles."""

import numpy as np

from host.checkpoints.checkpoint import admit, examine, make
from host.checkpoints.device_frame import load, read, verify
from host.migration.migrate import Downtime, migrate
from tests.host.migration.sites import MOMENTUM, advance, fabric_of, ledger_of, site_of, with_optimizer
from tests.host.rings import CONFIGS, open_nodes

KEY = b"k" * 32


def check(downtime):
    print(f"{downtime.live_words:,} live words: {downtime.cycles:,} cycles of {downtime.bound:,.0f}: {downtime}")
    assert downtime.cycles <= downtime.bound


def test_digits(tmp_path):
    """A training run on four nodes (digits, 64 hidden units, momentum) moves from links of 16 cycles to links of
    40."""
    config = with_optimizer(MOMENTUM, hidden=(64,), max_steps=2)
    here, there = (site_of(name, tmp_path, fabric_of("default", nodes=4, latency=latency), config=config)
                   for name, latency in (("here", 16), ("there", 40)))
    try:
        here.begin()
        advance(here, 1)
        downtime = migrate(here, there, ledger_of(tmp_path, "here"))
        check(downtime)
        assert downtime.live_words == 6026
        advance(there, 1)
    finally:
        here.close()
        there.close()


def test_a_whole_node():
    """Downtime of two nodes with 40,960 words each, from the end of one QUIESCE to the start of the next."""
    live = {"gradients": [(0, 16384)], "weights": [(0, 16384)], "state_0": [(0, 8192)]}
    generator = np.random.default_rng(4)
    with open_nodes(2, config=CONFIGS["default"]) as (source, here), open_nodes(
            2, config=CONFIGS["default"], latency=40) as (target, there):
        for device in source.devices:
            for space, ((base, count),) in live.items():
                device.write_memory(CONFIGS["default"].memory_map[space].number, base,
                                    generator.integers(0, 1 << 32, count, dtype=np.uint32))
        source.collectives.quiesce()
        times = [here.cycle]
        data = make(None, read(source, live), key=KEY)
        times += [here.cycle, there.cycle]
        frame = admit(examine(data, key=KEY), target)
        load(target, frame)
        times.append(there.cycle)
        verify(target, frame)
        times.append(there.cycle)
        target.collectives.quiesce()
        times.append(there.cycle)
    downtime = Downtime(read=times[1] - times[0], load=times[3] - times[2], read_back=times[4] - times[3],
                        start=times[5] - times[4], live_words=frame.live_words)
    assert downtime.live_words == 40_960
    check(downtime)
