# amaranth: UnusedElaboratable=no
"""If a party is killed or a message is lost during a migration, exactly one owner runs the job, bit-identically."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from host.checkpoints.device_frame import digest
from host.checkpoints.rejections import ReadBackError, StaleError, WrongWatermarkError
from host.driver.errors import DeviceTimeoutError
from host.migration.migrate import Message, MigrationError, Step, migrate, settle
from host.migration.site import Keys, SiteError
from tests.host.migration.sites import KEYS, MOMENTUM, advance, fabric_of, ledger_of, result, site_of, with_optimizer
from tests.refusals import refuses

CONFIG = with_optimizer(MOMENTUM, max_steps=4)
STEPS = list(Step)


def sites(folder):
    """Two migration sites on small nodes, with fabrics that open and close quickly."""
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
    """Check that only the site named by the ledger runs, and that its results are those of a run that never
    migrated."""
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
    """If one party loses its process and its fabric before a step, the ledger decides which party owns the job when
    the other party settles."""
    here, there, ledger = begun(tmp_path)
    owner = there if STEPS.index(step) > STEPS.index(Step.COMMIT) else here

    def on_step(current):
        if current is step:
            for site in (here, there):
                if site.name == victim:
                    site.close()
            raise MigrationError(f"{victim} lost")

    refuses(f"{victim} lost", migrate, here, there, ledger, on_step=on_step, error=MigrationError)
    assert settle(ledger, [here, there]) is owner  # any party may settle the ownership, even twice
    check(here, there, owner, expected, ledger)


@pytest.mark.parametrize("message", list(Message), ids=lambda message: message.name)
def test_lost_message(tmp_path, expected, message):
    here, there, ledger = begun(tmp_path)
    owner = there if message in (Message.COMMITTED, Message.STARTED) else here

    def channel(current):
        if current is message:
            raise MigrationError(f"no {current.value}")

    refuses(f"no {message.value}", migrate, here, there, ledger, channel=channel, error=MigrationError)
    check(here, there, owner, expected, ledger)


def test_silent_target(tmp_path, expected, monkeypatch):
    """If the target's nodes stop responding, the migration is abandoned and the job continues on its source."""
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
    """Run source, target, ledger and tenant as processes, kill one of them by SIGKILL at each step, and lose four
    messages. ``make migrate-failures`` kills each party at each step and loses each message."""
    done = subprocess.run([sys.executable, "-m", "tests.host.migration.failures", "--few", "--folder", tmp_path],
                          timeout=900, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "12 cases: 8 end on the source, 4 on the target, all with the bits of a run that was not moved")


@pytest.mark.parametrize("late", [False, True], ids=["before it is written", "read back"])
def test_rejected(tmp_path, expected, monkeypatch, late):
    """A target that rejects a checkpoint keeps its state and remains usable, and the job continues on its source."""
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


def moved_twice(folder):
    """Migrate a job to another site after step 1 and back after step 2. Also return the two checkpoints."""
    here, there, ledger = begun(folder)
    kept = []
    for source, target in ((here, there), (there, here)):
        advance(source, 1)
        migrate(source, target, ledger)
        kept.append(target.path.read_bytes())
    return here, there, ledger, kept


def test_older_checkpoint(tmp_path, expected):
    """After the owner's process has died, the job continues from the checkpoint that the ledger names, or from the
    owner's next one, but neither from any other checkpoint nor from the beginning."""
    here, there, ledger, kept = moved_twice(tmp_path)
    here.close()
    try:
        here.path.write_bytes(kept[0])
        refuses("STALE: checkpoint in the folder must have number 2, of the ledger, or the next one, not 1: the job "
                "was continued from another one", settle, ledger, [here, there], error=StaleError)
        here.path.unlink()
        with pytest.raises(SiteError, match=r"checkpoint\.tar must be checkpoint 2, from which the job continues, "
                                            r"not missing$"):
            settle(ledger, [here, there])
        assert not here.running
        for sequence in (2, 1):  # the ledger's checkpoint, then the owner's next one
            here.close()
            here.path.write_bytes(kept[1])
            here.go_on(sequence=sequence)
            assert here.running
        with pytest.raises(StaleError, match="must have number 0, of the ledger, or the next one, not 2: "):
            here.close() or here.go_on(sequence=0)
        settle(ledger, [here, there])
        check(here, there, here, expected, ledger)
    finally:
        here.close()
        there.close()


def test_older_run(tmp_path, expected, monkeypatch):
    """A source that was never scrubbed still holds its earlier run. After the job has moved back, this earlier run
    does not continue, even if the message that starts the job was lost."""
    here, there, ledger = begun(tmp_path)
    monkeypatch.setattr(here, "scrub", lambda: None)
    advance(here, 1)
    migrate(here, there, ledger)
    assert here.run is not None
    advance(there, 2)

    def lost(message):
        if message is Message.COMMITTED:
            raise MigrationError("no start")

    refuses("no start", migrate, there, here, ledger, channel=lost, error=MigrationError)
    assert here.run.state()["batches"]["number"] == 3
    check(here, there, here, expected, ledger)


def test_checked_calls(tmp_path):
    """Calls in the wrong order are rejected, with the reason, and change nothing."""
    here, there, ledger = begun(tmp_path)
    try:
        nonce = there.reserve()
        with pytest.raises(SiteError, match=r"^here must have a job that is frozen, to make a checkpoint of it$"):
            here.capture(nonce=nonce, sequence=1)
        refuses("here must not run a job, to load another one", here.load, b"", seen=0, error=SiteError)
        here.freeze()
        with pytest.raises(SiteError, match=r"^Checkpoint must have a larger number than 0, from which the job "):
            here.capture(nonce=nonce, sequence=0)
        data = here.capture(nonce=nonce, sequence=1)
        for call in (there.read_back, there.start, lambda: there.keep(data)):
            refuses("there must have loaded a checkpoint", call, error=SiteError)
        with pytest.raises(StaleError):
            there.load(data, seen=1)
        nonce = there.reserve()
        data = here.capture(nonce=nonce, sequence=1)
        there.load(data, seen=0)
        with pytest.raises(SiteError, match=r"^there must keep the checkpoint that it has loaded, not another one$"):
            there.keep(data + b"x")
        assert not there.path.exists()
        assert settle(ledger, [here, there]) is here
    finally:
        here.close()
        there.close()
