"""Feeding of a run of several passes: the host gives each pass its data while the run is under way.

A command of a program can wait for flags, which the host sets and the command clears. So each pass computes with its
own data, however early or late the host is: when a command of a pass has ended on all nodes, the host replaces the
data that it has used by the data of the next pass, and sets a flag.
"""

from collections.abc import Callable, Sequence

from hdl.control.protocol import EventStatus
from host.driver.command import Event
from host.driver.optimizer_settings import FixedSettings, Settings
from host.driver.protocols import TrainingRing
from host.driver.ring import Ring
from host.driver.trace import TraceRecord
from host.features.programs.program import CompiledProgram
from host.features.programs.ring_programs import Passes
from host.features.programs.schedules import SETTINGS_FLAG, STAGED_FLAG

__all__ = ["TraceReader", "run_passes"]

#: Words of the trace that a command takes, for its start and its end.
_RECORDS = 4


class TraceReader:
    """Reader of the traces of a run with more commands than they hold, in parts; made before the run."""

    def __init__(self, ring: Ring):
        self._devices = ring.devices
        #: Commands whose records a node keeps.
        self.room = ring.devices[0].config.memory_map["trace"].words // _RECORDS
        self._since = [int(device.read_register("TRACE_POINTER")) for device in self._devices]
        self._events = [0] * len(self._devices)
        self._records: list[list[TraceRecord]] = [[] for _ in self._devices]

    def on_event(self, rank: int) -> None:
        """Take note of the end of a command, and read the node's trace before it is half full."""
        self._events[rank] += 1
        if self._events[rank] >= self.room // 2:
            self._read(rank)

    def finish(self) -> list[list[TraceRecord]]:
        """All records of each node, after the run."""
        for rank in range(len(self._devices)):
            self._read(rank)
        return self._records

    def _read(self, rank: int) -> None:
        records = self._devices[rank].trace(self._since[rank])
        self._records[rank] += records
        self._since[rank] += len(records)
        self._events[rank] = 0


def run_passes(ring: TrainingRing, program: CompiledProgram, settings: Sequence[Settings | FixedSettings], *,
               first: int, after: str, give: Callable[[int], None]) -> Passes:
    """Run a program of kind ``delayed``, which the nodes have loaded, for several passes that overlap.

    Parameters
    ----------
    first : int
        Passes since the nodes were given their weights.
    after : str
        Last command of a pass that uses the host's data, or needs the memory of the next pass's data: ``backward 1``
        where COMPUTE copies gradients, ``forward 1`` where even and odd passes have inputs of their own.
    give : callable
        Called with the number of a pass, from 0; gives nodes the data of this pass.
    """
    tags = {task.name: task.place for task in program.tasks}
    # by the tag of the last command that uses it: replacement for a pass, and the flag that the pass waits for
    feeds = {tags[after]: (give, STAGED_FLAG),
             tags["latch"]: (lambda number: ring.settings.write(settings[number]), SETTINGS_FLAG)}
    ended = {tag: [0] * ring.nodes for tag in feeds}

    def feed(tag: int, number: int) -> None:
        replace, flag = feeds[tag]
        replace(number)
        ring.settings.set_flags(flag)

    def on_event(rank: int, event: Event) -> None:
        if event.tag not in feeds or event.status != EventStatus.OK:
            return
        counts = ended[event.tag]
        before = min(counts)
        counts[rank] += 1
        if before < min(counts) < len(settings):
            feed(event.tag, min(counts))

    for tag in feeds:
        feed(tag, 0)
    return ring.programs.run(collectives=program.collectives, passes=len(settings), parity=first % 2, first=first,
                             on_event=on_event)
