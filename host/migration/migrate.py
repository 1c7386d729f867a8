"""Migration of a running job from one site to another: stop and copy, with one owner at any time.

An update changes every weight, so nothing is worth copying ahead. The job stands still from FREEZE to START. The
ledger decides: before COMMIT the source owns the job, behind it the target does, and whoever is left after a failure
asks it (:func:`settle`).
"""

import dataclasses
import enum
from collections.abc import Callable, Sequence

from host.checkpoints.rejections import RejectionError
from host.driver.diagnosis import RingError
from host.driver.errors import DeviceError
from host.migration.ledger import Entry, Ledger, LedgerError
from host.migration.site import Site

__all__ = ["Downtime", "Message", "MigrationError", "Step", "migrate", "settle"]


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
    """Messages between the sites, in order."""

    RESERVED = "nonce, from the target"
    CHECKPOINT = "checkpoint, from the source"
    READY = "ready, from the target"
    COMMITTED = "committed, from the source"
    STARTED = "started, from the target"


class MigrationError(Exception):
    """A site or a message was lost; the owner in the ledger runs the job."""


@dataclasses.dataclass(frozen=True)
class Downtime:
    """Cycles from the last event to the first command, in which the job stood still.

    Members
    -------
    read, load, read_back, start : int
        Cycles of each part; of the source the first one, of the target the others.
    live_words : int
        Words of a node that were carried.
    """

    read: int
    load: int
    read_back: int
    start: int
    live_words: int

    @property
    def cycles(self) -> int:
        return self.read + self.load + self.read_back + self.start

    @property
    def bound(self) -> float:
        """Most cycles that it may take: three passes over the live words and 4,000, and a tenth of that."""
        return 1.1 * (3 * self.live_words + 4000)


def migrate(source: Site, target: Site, ledger: Ledger, *, on_step: Callable[[Step], None] = lambda step: None,
            channel: Callable[[Message], None] = lambda message: None) -> Downtime:
    """Move the job of the source to the target.

    Parameters
    ----------
    source, target : Site
        The source runs the job, and the ledger says so.
    ledger : Ledger
    on_step : callable
        Called before each step.
    channel : callable
        Called with each message; raises ``MigrationError`` if it is lost.

    Raises
    ------
    RejectionError
        The target has refused the checkpoint; the source goes on.
    MigrationError, DeviceError, RingError
        A site, a message or a node was lost; the owner goes on.
    LedgerError
        The source does not own the job.
    """
    entry = ledger.read()
    if entry.owner != source.name or not source.running:
        raise LedgerError(f"Source must run the job and own it, not {source.name}, while the ledger names "
                          f"{entry.owner}")
    try:
        return _migrate(source, target, ledger, entry, on_step, channel)
    except (RejectionError, MigrationError, DeviceError, RingError):
        settle(ledger, [source, target])
        raise


def _migrate(source: Site, target: Site, ledger: Ledger, entry: Entry, on_step: Callable[[Step], None],
             channel: Callable[[Message], None]) -> Downtime:
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


def settle(ledger: Ledger, sites: Sequence[Site]) -> Site:
    """Have the owner in the ledger run the job, and all others forget it; returns the owner.

    The others are scrubbed first, so that at no time two of them run. Doing it again changes nothing.

    Raises
    ------
    LedgerError
        The ledger names none of the sites.
    """
    name = ledger.read().owner
    owner = next((site for site in sites if site.name == name), None)
    if owner is None:
        raise LedgerError(f"Owner of the job must be one of {', '.join(site.name for site in sites)}, not {name}")
    for site in sites:
        if site is not owner:
            site.scrub()
    owner.go_on()
    return owner
