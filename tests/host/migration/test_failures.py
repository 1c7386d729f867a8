# amaranth: UnusedElaboratable=no
"""Migrations in which a party is killed or a message is lost: one owner runs the job, to the same bits."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from host.checkpoints.device_frame import digest
from host.checkpoints.rejections import ReadBackError, WrongWatermarkError
from host.driver.errors import DeviceTimeoutError
from host.migration.migrate import Message, MigrationError, Step, migrate, settle
from host.migration.site import Keys
from tests.host.migration.sites import (
    KEYS,
    MOMENTUM,
    fabric_of,
    ledger_of,
    result,
    site_of,
    with_optimizer,
)

CONFIG = with_optimizer(MOMENTUM, max_steps=4)
STEPS = list(Step)


def sites(folder):
    """Two sites on small nodes, whose fabrics open and close quickly."""
    return [site_of(name, folder, fabric_of("wide", nodes=2, latency=latency), config=CONFIG)
            for name, latency in (("here", 16), ("there", 29))]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    here, _ = sites(tmp_path_factory.mktemp("whole"))
    here.begin()
    try:
        return result(here)[:3]
    finally:
        here.close()


def begun(folder):
    here, there = sites(folder)
    ledger = ledger_of(folder, "here")
    here.begin()
    return here, there, ledger


def check(here, there, owner, expected, ledger):
    """One site runs, that of the ledger, and ends with the bits of a run that nobody has moved."""
    try:
        running = [site.name for site in (here, there) if site.running]
        assert running == [owner.name] == [ledger.read().owner]
        assert not (there if owner is here else here).path.exists()
        assert result(owner)[:3] == expected
    finally:
        here.close()
        there.close()


@pytest.mark.parametrize("victim", ["here", "there"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_killed(tmp_path, expected, step, victim):
    """A process and its fabric are lost before each step; those left settle by the ledger."""
    here, there, ledger = begun(tmp_path)
    owner = there if STEPS.index(step) > STEPS.index(Step.COMMIT) else here

    def on_step(found):
        if found is step:
            for site in (here, there):
                if site.name == victim:
                    site.close()
            raise MigrationError(f"{victim} lost")

    with pytest.raises(MigrationError, match=f"^{victim} lost$"):
        migrate(here, there, ledger, on_step=on_step)
    assert settle(ledger, [here, there]) is owner  # again, as each of those left may
    check(here, there, owner, expected, ledger)


@pytest.mark.parametrize("message", list(Message), ids=lambda message: message.name)
def test_lost_message(tmp_path, expected, message):
    here, there, ledger = begun(tmp_path)
    owner = there if message in (Message.COMMITTED, Message.STARTED) else here

    def channel(found):
        if found is message:
            raise MigrationError(f"no {found.value}")

    with pytest.raises(MigrationError, match=f"^no {message.value}$"):
        migrate(here, there, ledger, channel=channel)
    check(here, there, owner, expected, ledger)


def test_silent_target(tmp_path, expected, monkeypatch):
    """Nodes that cease to answer are given up, and the job goes on where it was."""
    here, there, ledger = begun(tmp_path)

    def silent(*arguments, **options):
        raise DeviceTimeoutError("node 1: no response")

    def on_step(step):
        if step is Step.READ_BACK:
            for device in there.open().devices:
                monkeypatch.setattr(device, "_submit", silent)

    with pytest.raises(DeviceTimeoutError, match="no response"):
        migrate(here, there, ledger, on_step=on_step)
    check(here, there, here, expected, ledger)


def test_processes(tmp_path):
    """Source, target, ledger and tenant as processes: each step once with one of them killed by SIGKILL, and four
    messages lost. ``make migrate-failures`` has each party at each step, and each message."""
    done = subprocess.run([sys.executable, "-m", "tests.host.migration.failures", "--few", "--folder", tmp_path],
                          timeout=900, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "12 cases: 8 end on the source, 4 on the target, all with the bits of a run that was not moved")


@pytest.mark.parametrize("late", [False, True], ids=["before it is written", "read back"])
def test_rejected(tmp_path, expected, monkeypatch, late):
    """A target that refuses a checkpoint holds what it held before, and can be used; the job goes on where it was."""
    here, there, ledger = begun(tmp_path)
    nodes = there.open().devices
    nodes[0].write_memory(1, 7, np.arange(5, dtype=np.uint32))
    before = digest(there.open())

    def on_step(step):
        if late and step is Step.READ_BACK:
            nodes[1].write_memory(1, 7, np.arange(5, dtype=np.uint32))
        elif not late and step is Step.LOAD:
            monkeypatch.setattr(there, "_keys", Keys(KEYS.manifest, b"x" * 32))

    with pytest.raises(ReadBackError if late else WrongWatermarkError):
        migrate(here, there, ledger, on_step=on_step)
    assert digest(there.open()) == before
    monkeypatch.undo()
    migrate(here, there, ledger)
    check(here, there, there, expected, ledger)
