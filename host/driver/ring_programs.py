"""Programs of all nodes of a ring: loads, runs, events, and traces."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TypeAlias

from hdl.control.protocol import EventFlag, EventStatus, Operation
from host.driver.command import Command, Event
from host.driver.device import Device
from host.driver.diagnosis import explain
from host.driver.nodes import TIMEOUT
from host.driver.programs import run_programs
from host.driver.results import Outcome
from host.driver.submission import RingCommands
from host.driver.trace import TraceRecord

__all__ = ["Passes", "RingPrograms"]

#: Commands of each queue of a node.
NodeProgram: TypeAlias = Sequence[Sequence[Command]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes:
    """Result of a run.

    Members
    -------
    events : list of list of Event
        Events of each node, those of its first queue before those of the next.
    traces : list of list of TraceRecord
        Starts and ends of its commands.
    outcome : Outcome
        Cycles from the first start to the last end, of the node on which they were most.
    """

    events: list[list[Event]]
    traces: list[list[TraceRecord]]
    outcome: Outcome


class RingPrograms(RingCommands):
    """Nodes in a ring, and their programs.

    Parameters
    ----------
    devices, timeout
        Parameters of :class:`~host.driver.nodes.RingNodes`.
    """

    def __init__(self, devices: Sequence[Device], *, timeout: int = TIMEOUT):
        super().__init__(devices, timeout=timeout)
        self._programs: list[list[list[Command]]] = []
        self._model = 0

    def load_programs(self, programs: Sequence[NodeProgram], *, model: int = 0) -> None:
        """Give each node its program, which stays loaded; in order of rank.

        Parameters
        ----------
        programs : sequence of sequence of sequence of Command
            Commands of each queue of each node, of as many on all nodes.
        model : int
            Number of the program, which :meth:`run_programs` names.
        """
        if len(programs) != self.nodes:
            raise ValueError(f"Programs must be one per node, {self.nodes}, not {len(programs)}")
        if self._config.queues == 1:
            raise ValueError("Nodes must have two queues for programs, not one")
        for queue in range(self._config.queues):
            pending = [device.submit_load_program(queue, program[queue], model=model)
                       for device, program in zip(self._devices, programs, strict=True)]
            for one in pending:
                one.result()
        self._programs = [[list(commands) for commands in program] for program in programs]
        self._model = model

    def run_programs(self, *, collectives: int, passes: int = 1) -> Passes:
        """Run the programs of all nodes, wait for them, and read the traces.

        Parameters
        ----------
        collectives : int
            Numbers of collectives that a pass takes.
        passes : int

        Raises
        ------
        RingError
            A command failed on at least one node. The ring must be put in order by :meth:`recover`, after which the
            programs are still loaded.
        TraceError
            There were more commands than a node's trace holds.
        """
        self.wait()
        since = [int(value) for value in self._all(lambda rank, device: device.submit_read_register("TRACE_POINTER"))]
        first = (self._latest + 1) % (1 << 16)
        self._latest = (self._latest + passes * collectives) % (1 << 16)
        counts = [len(queue) for queue in self._programs[0]]
        commands = [command for program in self._programs for queue in program for command in queue]
        patience = 4 * self._timeout + max((command.duration + 2 * command.length for command in commands), default=0)
        found = run_programs(self._devices, passes, commands=counts, patience=patience, model=self._model,
                             collective=first, collectives=collectives)
        events = [list(itertools.chain(*queues)) for queues in found]
        failed = [next((event for event in mine if event.status != EventStatus.OK), None) for mine in events]
        if any(failed) or any(len(mine) < passes * sum(counts) for mine in events):
            self._fail(events, failed, passes * sum(counts))
        traces = [device.trace(begun) for device, begun in zip(self._devices, since, strict=True)]
        return Passes(events=events, traces=traces, outcome=_outcome(events, traces))

    def _fail(self, events: list[list[Event]], failed: list[Event | None], count: int) -> None:
        """Raise the error of a run that has not ended well.

        Of a node that gave all its events, the last one speaks for it; one that gave less, and none of an error, has
        not ended its program.
        """
        speaking = [bad or (mine[-1] if len(mine) == count and mine else None)
                    for mine, bad in zip(events, failed, strict=True)]
        tag, rank = next(((event.tag, rank) for rank, event in enumerate(failed) if event is not None), (None, 0))
        named = (command.operation for queue in self._programs[rank] for command in queue if command.tag == tag)
        operation = next(named, Operation.QUIESCE)
        missing, rest = self._settle(speaking)
        raise explain(Operation(operation), speaking, devices=self._devices, missing=missing, rest=rest)


def _outcome(events: list[list[Event]], traces: list[list[TraceRecord]]) -> Outcome:
    """Outcome of a run that has ended well on every node."""
    def flagged(flag: EventFlag) -> tuple[int, ...]:
        return tuple(rank for rank, mine in enumerate(events) if any(flag in event.flags for event in mine))

    # A record of a later time may come first, since two in one cycle wait for each other; times wrap.
    cycles = []
    for trace in traces:
        times = [(record.time - trace[0].time + (1 << 31)) % (1 << 32) - (1 << 31) for record in trace]
        cycles.append(max(times, default=0) - min(times, default=0))
    return Outcome(cycles=max(cycles), local_nan=flagged(EventFlag.LOCAL_NAN),
                   not_finite=flagged(EventFlag.NOT_FINITE))
