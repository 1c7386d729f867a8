"""Move a job from a local ring over the serial line of a simulated board, and back."""

import contextlib
import dataclasses

import numpy as np

from hdl.board import BOARDS
from host.checkpoints.device_frame import load, read, verify
from host.driver.ring import Ring
from host.labs.migrate import lab as command
from host.migration.migrate import migrate
from host.migration.site import Fabric
from host.transports.session import TransportName
from sim.verilated.board import RATES, SimulatedBoard
from tests.host.board import CONFIG, devices_of, library, open_link
from tests.host.migration.sites import MOMENTUM, advance, fabric_of, few, ledger_of, result, site_of, with_optimizer


@contextlib.contextmanager
def board():
    with open_link() as (simulated, link):
        ring = Ring(devices_of(link), timeout=20_000)
        ring.connect()
        yield Fabric(ring, lambda: simulated.cycle, (RATES["clock"], RATES["baud"]))


def test_same_bits(tmp_path):
    """A job moves from nodes with four lanes, and an optimizer for four elements at a time, to nodes of a board with
    one lane. It runs a step there and moves back."""
    config = with_optimizer(MOMENTUM, max_steps=3)
    small = dataclasses.replace(few(), train_x=few().train_x[:, 24:40], test_x=few().test_x[:, 24:40])  # saves time
    ring, here = (site_of(name, tmp_path, fabric, config=config, data=small)
                  for name, fabric in (("ring", fabric_of("server", nodes=2)), ("board", board)))
    try:
        ring.begin()
        expected = result(ring)
        ring.scrub()
        ring.begin()
        advance(ring, 1)
        ledger = ledger_of(tmp_path, "ring")
        there = migrate(ring, here, ledger)
        wire = here.pass_cycles(there.live_words)
        assert wire == there.live_words * 40 * 2 * RATES["clock"] // RATES["baud"]
        assert min(there.load, there.read_back) >= wire
        advance(here, 1)
        back = migrate(here, ring, ledger)
        assert back.read >= wire
        print(f"the words of two nodes take {wire:,} cycles on the line of a board: of {there.load:,} of a load, "
              f"{there.read_back:,} of a read-back, {back.read:,} of a read")
        assert result(ring) == expected
    finally:
        here.close()
        ring.close()


def test_serial_port():
    """State is read from a board on a serial port (here a pseudo-terminal), loaded, and read back. Times are measured
    by the clock of the serial line."""
    built = dataclasses.replace(BOARDS["simulated"], node=CONFIG)
    live = {"weights": [(0, 32)]}
    words = np.arange(64, dtype=np.uint32)
    with SimulatedBoard(library(), **RATES) as simulated:
        with command._fabric(CONFIG, nodes=2, transport=TransportName.SERIAL, board=built,
                             device=simulated.path) as fabric:
            for rank, device in enumerate(fabric.ring.devices):
                device.write_memory(1, 0, words[32 * rank:][:32])
            frame = read(fabric.ring, live)
            begun = fabric.clock()
            load(fabric.ring, frame)
            verify(fabric.ring, frame)
            assert fabric.clock() > begun
            assert fabric.pass_cycles(frame.live_words) == 32 * 2 * 40 * 4
    assert [np.frombuffer(frame.regions[f"device/0{rank}/weights/0"], "<u4").tolist() for rank in range(2)] == (
        words.reshape(2, 32).tolist())
