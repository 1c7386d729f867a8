"""Migrate a running job between sites: the job is stopped and copied, and exactly one site owns it at any time.

Each update changes every weight, so copying in advance would be useless. The job is stopped from FREEZE to START. The
ledger determines the owner: the source before COMMIT, and the target after COMMIT, even if :func:`settle` is called
after a failure.
"""

import contextlib
import dataclasses
import enum
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from host.output import write_json
from sim import json_files
from sim.fields import integer, record, text

if TYPE_CHECKING:
    from host.migration.parties import RemoteLedger, RemoteSite
    from host.migration.site import Site

__all__ = ["Downtime", "Entry", "Ledger", "LedgerError", "LedgerParty", "Message", "MigrationError", "SiteParty",
           "Step", "migrate", "settle"]


class LedgerError(ValueError):
    """Raised if the ledger cannot be read or its entry is not as expected."""


_ENTRY = record(owner=text(r"[ -~]{0,256}"), sequence=integer(-1, 1 << 62))


@dataclasses.dataclass(frozen=True)
class Entry:
    """Entry of a ledger: the owner of a job, and the number of the checkpoint from which the owner continued."""

    owner: str
    sequence: int


class Ledger:
    """Ledger of a job: a file that names the only site that may run the job.

    A commit replaces the file with an atomic rename, so even if a process is killed, the file contains either the old
    or the new entry.
    """

    calls = frozenset({"read", "commit"})  # methods that tenants may call

    def __init__(self, path: Path):
        self._path = path

    def read(self) -> Entry:
        """Read the ledger's current entry; raises ``LedgerError`` if there is none."""
        try:
            value = json_files.read(self._path)
        except (OSError, ValueError):
            value = None
        if not _ENTRY(value):
            raise LedgerError(f"{self._path} must be a ledger, with the owner of a job and a number")
        return Entry(**value)

    def commit(self, entry: Entry) -> None:
        """Replace the ledger's current entry."""
        write_json(self._path, dataclasses.asdict(entry))


#: Parties of a migration, each in this process or in another process.
LedgerParty: TypeAlias = "Ledger | RemoteLedger"
SiteParty: TypeAlias = "Site | RemoteSite"


class Step(enum.Enum):
    """Steps of a migration, in order."""

    FREEZE = "freeze"
    READ = "read"
    LOAD = "load"
    READ_BACK = "read back"
    READY = "ready"
    COMMIT = "commit"
    START = "start"
    SCRUB = "scrub"


class Message(enum.Enum):
    """Messages between the sites of a migration, in order."""

    RESERVED = "nonce, from the target"
    CHECKPOINT = "checkpoint, from the source"
    READY = "ready, from the target"
    COMMITTED = "committed, from the source"
    STARTED = "started, from the target"


class MigrationError(Exception):
    """Raised if a site or a message is lost. The job then belongs to the owner that the ledger names."""


@dataclasses.dataclass(frozen=True)
class Downtime:
    """Number of cycles for which the job was stopped: from its last event to its first command afterwards."""

    read: int  # cycles on the source to read the job's data
    # cycles on the target to load the checkpoint, to read it back and to start
    load: int
    read_back: int
    start: int
    live_words: int  # number of words that were moved per node

    @property
    def cycles(self) -> int:
        return self.read + self.load + self.read_back + self.start

    @property
    def bound(self) -> float:
        """Upper bound on the cycles: three per live word plus 4,000, increased by 10 %."""
        return 1.1 * (3 * self.live_words + 4000)


def migrate(source: SiteParty, target: SiteParty, ledger: LedgerParty, *,
            on_step: Callable[[Step], None] = lambda step: None,
            channel: Callable[[Message], None] = lambda message: None) -> Downtime:
    """Move a job from the source to the target.

    Raises ``LedgerError`` unless the source owns and runs the job, and ``RejectionError`` if the target rejects the
    checkpoint; the source then continues. Raises ``MigrationError``, ``DeviceError``, ``RingError``, ``OSError`` or
    ``MemoryError`` if a site, message or node is lost, or a disk or memory is full. After these and all other errors,
    the owner continues.

    ``on_step`` is called before each step, and ``channel`` with each message; ``channel`` raises ``MigrationError``
    if the message is lost.
    """
    entry = ledger.read()
    if entry.owner != source.name or not source.running:
        raise LedgerError(f"Source must run the job and own it, not {source.name}, while the ledger names "
                          f"{entry.owner}")
    try:
        return _migrate(source, target, ledger, entry, on_step, channel)
    except Exception:
        settle(ledger, [source, target])
        raise


def _migrate(source: SiteParty, target: SiteParty, ledger: LedgerParty, entry: Entry,
             on_step: Callable[[Step], None], channel: Callable[[Message], None]) -> Downtime:
    sequence = entry.sequence + 1
    nonce = target.reserve()
    channel(Message.RESERVED)
    on_step(Step.FREEZE)
    source.freeze()
    times = [source.cycles]
    on_step(Step.READ)
    data = source.capture(nonce=nonce, sequence=sequence)
    times += [source.cycles, target.cycles]
    channel(Message.CHECKPOINT)
    on_step(Step.LOAD)
    target.load(data, seen=entry.sequence)
    live = target.live_words
    times.append(target.cycles)
    on_step(Step.READ_BACK)
    target.read_back()
    times.append(target.cycles)
    on_step(Step.READY)
    target.keep(data)
    channel(Message.READY)
    on_step(Step.COMMIT)
    ledger.commit(Entry(target.name, sequence))
    channel(Message.COMMITTED)
    on_step(Step.START)
    target.start()
    times.append(target.cycles)
    channel(Message.STARTED)
    on_step(Step.SCRUB)
    source.scrub()
    return Downtime(read=times[1] - times[0], load=times[3] - times[2], read_back=times[4] - times[3],
                    start=times[5] - times[4], live_words=live)


def settle(ledger: LedgerParty, sites: Sequence[SiteParty]) -> SiteParty:
    """Make the ledger's owner run the job and all other sites delete it; return the owner.

    The other sites are scrubbed first, so that two sites never run the job at the same time. A site that does not
    answer is skipped: a target that is not the owner was never started, and a source that is no longer the owner was
    frozen before the commit. A later call scrubs such a site and changes nothing else. Raises ``LedgerError`` if the
    ledger names none of the sites, and ``StaleError`` or ``SiteError`` if the owner lacks the ledger's checkpoint.
    """
    entry = ledger.read()
    owner = next((site for site in sites if site.name == entry.owner), None)
    if owner is None:
        raise LedgerError(f"Owner of the job must be one of {', '.join(site.name for site in sites)}, not "
                          f"{entry.owner}")
    for site in sites:
        if site is not owner:
            with contextlib.suppress(Exception):  # ignore any error, as the job must not wait for this site
                site.scrub()
    owner.go_on(sequence=entry.sequence)
    return owner
