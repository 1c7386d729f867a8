# amaranth: UnusedElaboratable=no
"""If disk or memory is full at any step of a migration, one owner runs the job, bit-identically."""

import contextlib
import errno

import pytest

from host.migration import migrate as migrate_module
from host.migration import site as site_module
from host.migration.migrate import migrate, settle
from tests.host.migration.sites import MOMENTUM, fabric_of, ledger_of, result, site_of, with_optimizer

CONFIG = with_optimizer(MOMENTUM, max_steps=2)

FAULTS = {"disk": lambda: OSError(errno.ENOSPC, "No space left on device"), "memory": MemoryError}

#: Functions used by calls to the parties of a migration. If one of them fails, the call is left partly done.
PARTS = [(site_module, name) for name in ("read", "make", "write_bytes", "examine", "admit", "unpack_state", "load",
                                          "verify", "scrub", "make_trainer")] + [(migrate_module, "write_json")]


class Fault:
    """Wrapper that makes a function fail before or after its work, either once or from then on."""

    def __init__(self, act, error, *, late=False, forever=False):
        self.act, self.error, self.late, self.forever = act, error, late, forever
        self.failed = False

    def __call__(self, *arguments, **options):
        if self.failed and not self.forever:
            return self.act(*arguments, **options)
        self.failed = True
        if self.late:
            self.act(*arguments, **options)
        raise self.error()


@pytest.fixture(scope="module")
def rings():
    """Two open rings of small nodes, as fabrics of migration sites."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(fabric_of("wide", nodes=2, latency=latency)())
               for name, latency in (("here", 16), ("there", 29))}


def sites(folder, rings):
    def fabric(name):
        @contextlib.contextmanager
        def opens():
            rings[name].ring.recover()
            yield rings[name]
        return opens

    return [site_of(name, folder, fabric(name), config=CONFIG) for name in ("here", "there")]


@pytest.fixture(scope="module")
def expected(tmp_path_factory, rings):
    here, _ = sites(tmp_path_factory.mktemp("whole"), rings)
    here.begin()
    return result(here)[:3]


def calls(folder, rings):
    """Names of the calls that a migration makes to its parties, in order."""
    here, there, ledger, made = *begun(folder, rings), []
    with pytest.MonkeyPatch.context() as patch:
        for title, party in (("here", here), ("there", there), ("ledger", ledger)):
            for name in sorted(party.calls):
                act = getattr(party, name)
                if callable(act):
                    def record(*arguments, act=act, call=(title, name), **options):
                        made.append(call)
                        return act(*arguments, **options)

                    patch.setattr(party, name, record)
        migrate(here, there, ledger)
    assert there.running
    return made


def begun(folder, rings):
    here, there = sites(folder, rings)
    ledger = ledger_of(folder, "here")
    here.begin()
    return here, there, ledger


def check(here, there, ledger, expected, label):
    """Check that only the owner named by the ledger runs, and that its results are bit-identical."""
    running = [site for site in (here, there) if site.running]
    assert [site.name for site in running] == [ledger.read().owner], label
    assert result(running[0])[:3] == expected, label


#: Calls that a migration makes, in order. A test compares this list with the calls that are actually made.
CALLS = [("ledger", "read"), ("there", "reserve"), ("here", "freeze"), ("here", "capture"), ("there", "load"),
         ("there", "read_back"), ("there", "keep"), ("ledger", "commit"), ("there", "start"), ("here", "scrub")]


def test_calls(tmp_path, rings):
    """``CALLS`` lists all calls of a migration."""
    assert calls(tmp_path, rings) == CALLS


@pytest.mark.parametrize(("fault", "late"), [("disk", False), ("disk", True), ("memory", False)],
                         ids=["disk", "disk, when it is done", "memory"])
@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_each_step(tmp_path, rings, expected, monkeypatch, call, fault, late):
    """If any call to any party fails, either before or after it has done its work, exactly one owner runs the job."""
    here, there, ledger = begun(tmp_path, rings)
    party = {"here": here, "there": there, "ledger": ledger}[call[0]]
    failing = Fault(getattr(party, call[1]), FAULTS[fault], late=late)
    monkeypatch.setattr(party, call[1], failing)
    with pytest.raises((OSError, MemoryError)):
        migrate(here, there, ledger)
    assert failing.failed
    assert ledger.read().owner == ("there" if CALLS.index(call) > 7 or (call[1] == "commit" and late) else "here")
    check(here, there, ledger, expected, call)


@pytest.mark.parametrize(("fault", "forever"), [("disk", True), ("memory", False)], ids=["disk", "memory, once"])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part[1])
def test_within_steps(tmp_path, rings, expected, part, fault, forever):
    """If any function that the steps use fails, once or permanently, exactly one owner runs the job."""
    module, name = part
    here, there, ledger = begun(tmp_path, rings)
    with pytest.MonkeyPatch.context() as patch:
        failing = Fault(getattr(module, name), FAULTS[fault], forever=forever)
        patch.setattr(module, name, failing)
        # If scrubbing fails, the source loses its fabric, but no error is raised because the job has already moved.
        with contextlib.nullcontext() if name == "scrub" else pytest.raises((OSError, MemoryError)):
            migrate(here, there, ledger)
        assert failing.failed
    if not any(site.running for site in (here, there)):  # the target did not have enough memory to start the job
        assert (name, forever) == ("make_trainer", True)
        settle(ledger, [here, there])
    check(here, there, ledger, expected, part)
