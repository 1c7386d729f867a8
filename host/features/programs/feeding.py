"""Feeding of a run of several passes: the host gives each of them what it needs, while the run goes on.

A command of a program can wait for flags, which the host sets and the command takes. So a pass has of the host what
is meant for it, however early or late the host is: when a command of a pass has ended on all nodes, what it has used
can be replaced by what the next pass needs, and a flag says that this is done.
"""

import dataclasses
from collections.abc import Callable, Sequence

from hdl.control.protocol import EventStatus
from host.driver.command import Event
from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.protocols import TrainingRing
from host.driver.ring import Ring
from host.driver.trace import TraceRecord
from host.features.programs.passes import Passes
from host.features.programs.program import CompiledProgram
from host.features.programs.schedules import SETTINGS_FLAG, STAGED_FLAG

__all__ = ["Feed", "Feeder", "TraceReader", "run_passes"]

#: Words of the trace that a command takes: those of its start and of its end.
_RECORDS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feed:
    """Something that each pass needs of the host."""

    #: Tag of the command of a pass that is the last to use it.
    tag: int
    #: Bit of the flag that a command of the next pass waits for.
    flag: int
    #: Called with the number of a pass, from 0; replaces what is there by what this pass needs.
    give: Callable[[int], None]


class Feeder:
    """Give all passes of a run what they need."""

    def __init__(self, ring: TrainingRing, passes: int, feeds: Sequence[Feed]):
        self._ring = ring
        self._passes = passes
        self._feeds = {feed.tag: feed for feed in feeds}
        if len(self._feeds) != len(feeds):
            raise ValueError("Feeds must follow different commands")
        self._ended = {feed.tag: [0] * ring.nodes for feed in feeds}

    def begin(self) -> None:
        """Give the first pass what it needs, before the run."""
        for feed in self._feeds.values():
            self._give(feed, 0)

    def on_event(self, rank: int, event: Event) -> None:
        """Take note of an event of the run, and give the next pass what it needs if all nodes are ready for it."""
        feed = self._feeds.get(event.tag)
        if feed is None or event.status != EventStatus.OK:
            return
        ended = self._ended[event.tag]
        before = min(ended)
        ended[rank] += 1
        if before < min(ended) < self._passes:
            self._give(feed, min(ended))

    def _give(self, feed: Feed, number: int) -> None:
        feed.give(number)
        self._ring.settings.set_flags(feed.flag)


class TraceReader:
    """Read the traces of a run with more commands than they hold, in parts, from before the run on."""

    def __init__(self, ring: Ring):
        self._devices = ring.devices
        #: Commands whose records a node keeps.
        self.room = ring.devices[0].config.memory_map["trace"].words // _RECORDS
        self._since = [int(device.read_register("TRACE_POINTER")) for device in self._devices]
        self._events = [0] * len(self._devices)
        self._found: list[list[TraceRecord]] = [[] for _ in self._devices]

    def on_event(self, rank: int) -> None:
        """Take note of the end of a command, and read the node's trace before it is half full."""
        self._events[rank] += 1
        if self._events[rank] >= self.room // 2:
            self._read(rank)

    def finish(self) -> list[list[TraceRecord]]:
        """All records of each node, after the run."""
        for rank in range(len(self._devices)):
            self._read(rank)
        return self._found

    def _read(self, rank: int) -> None:
        found = self._devices[rank].trace(self._since[rank])
        self._found[rank] += found
        self._since[rank] += len(found)
        self._events[rank] = 0


def run_passes(ring: TrainingRing, program: CompiledProgram, settings: Sequence[Settings | FixedSettings], *,
               first: int, after: str, give: Callable[[int], None]) -> Passes:
    """Run a stale program, which the nodes have loaded, for several passes that overlap.

    Parameters
    ----------
    first : int
        Passes since the nodes were given their weights.
    after : str
        Last command of a pass that uses what the host gives to it, or that needs the place of what the next pass is
        given: ``backward 1`` where COMPUTE copies gradients, ``forward 1`` where even and odd passes have inputs of
        their own.
    give : callable
        Called with the number of a pass, from 0; gives nodes what it computes with.
    """
    tags = {task.name: task.place for task in program.tasks}
    feeder = Feeder(ring, len(settings), [
        Feed(tag=tags[after], flag=STAGED_FLAG, give=give),
        Feed(tag=tags["latch"], flag=SETTINGS_FLAG, give=lambda number: ring.settings.write(settings[number]))])
    feeder.begin()
    return ring.programs.run(collectives=program.collectives, passes=len(settings), parity=first % 2, first=first,
                             on_event=feeder.on_event)
