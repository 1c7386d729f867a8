"""Programs on the nodes of a ring: loading, runs, events and traces.

Nodes with several queues store their programs. For nodes with one queue, the driver sends the commands of each pass
one by one.
"""

import dataclasses
import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from hdl.control.program_layouts import program_header_layout
from hdl.control.protocol import EventFlag, EventStatus, Operation
from hdl.control.sequencer import RUN_BITS
from hdl.engines import operations
from hdl.features.programs.program_banks import edit_layout
from hdl.ring.topology import SMALL_RING
from host.driver.command import Command, Event, ProgramRun
from host.driver.command_queueing import CommandQueueing, PendingCommand
from host.driver.device import Device
from host.driver.devices import Devices
from host.driver.errors import DeviceError, DeviceTimeoutError
from host.driver.planned_lists import PlannedLists
from host.driver.results import Cycles, Outcome, slowest, total
from host.driver.trace import TraceRecord
from host.driver.words import Words, pack, places

__all__ = ["NodeProgram", "Passes", "RingPrograms", "Staged", "digest", "edit_words"]

#: Highest run number; runs are numbered from 1.
_RUNS = (1 << int(RUN_BITS)) - 1

#: Maximum number of cycles per poll for an event if nodes have different numbers of commands. The second, lower
#: maximum is for quorum updates, where a node gets its next computation only after an event is taken.
_LOOK, _SHORT_LOOK = 500, 100

#: Command fields that the driver sets when it sends the command.
_CHOSEN = ("operation", "tag", "collective", "epoch")

#: Commands of each queue of a node.
NodeProgram: TypeAlias = Sequence[Sequence[Command]]

#: Header fields of a load into the idle bank, and fields of an edit.
_HEADER = places(program_header_layout(banks=2))
_EDIT = places(edit_layout())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes:
    """Result of a run."""

    #: Events of each node, ordered by queue.
    events: list[list[Event]]
    #: Start and end records of each node's commands; empty if not ``traced`` or on nodes with one queue.
    traces: list[list[TraceRecord]]
    #: Number of cycles from the first start to the last end on the slowest node; without traces, the total cycles of
    #: its commands.
    outcome: Outcome


@dataclasses.dataclass(kw_only=True)
class Staged:
    """Programs that have been loaded into the nodes' idle banks."""

    programs: list[list[list[Command]]]
    model: int  # number of the staged program
    set: int | None = None  # first set in which the programs apply; None until the edit is acknowledged
    comparisons: int = 0  # number of edits that only compared digests and were withdrawn


class RingPrograms:
    """Programs of all nodes; if a memory plan is set, commands may run only its ``planned`` lists."""

    def __init__(self, devices: Devices, commands: CommandQueueing, planned: PlannedLists):
        self._devices = devices
        self._config = devices.config
        self._commands = commands
        self._planned = planned
        self._programs: list[list[list[Command]]] = []
        self._all_loaded = False  # False after a failed load, when some nodes may have no program
        self._model = 0
        self._staged: Staged | None = None
        self._next_set: int | None = None
        self._on_ring = {op.code for config in devices.configs for op in operations(config) if op.on_ring}

    def _next_run(self) -> int:
        """Choose a run number that differs from all nodes' latest numbers; 0 without control words."""
        if not self._config.has_signals:
            return 0
        latest = {int(device.latest_run) for device in self._devices}
        number = max(latest) % _RUNS + 1
        while number in latest:
            number = number % _RUNS + 1
        return number

    @property
    def loaded(self) -> tuple[int, list[list[list[Command]]]]:
        """Number and commands of the loaded program; 0 and [] if none is loaded or a load failed."""
        return (self._model, self._programs) if self._all_loaded else (0, [])

    @property
    def staged(self) -> tuple[int, list[list[list[Command]]], int | None] | None:
        """Number and commands of the program in the idle banks, and its first set if acknowledged by all nodes; None
        if no program is staged."""
        return None if self._staged is None else (self._staged.model, self._staged.programs, self._staged.set)

    @property
    def next_set(self) -> int | None:
        """Number of the set of passes after the latest run, which edits refer to; None before the first run."""
        return self._next_set

    def begin_set(self, number: int) -> None:
        """Start a set with a run of zero passes, which swaps the banks if an edit is waiting for this set."""
        self._turn(number)
        latest = [device.latest_run for device in self._devices]
        self._devices.ask(lambda rank, device: device.submit_run(ProgramRun(0, model=self._model, first=number)))
        for device, run in zip(self._devices, latest, strict=True):
            device.latest_run = run
        self._next_set = number

    def _turn(self, first: int) -> None:
        """Mark the staged programs as loaded if the set that starts now is their first one."""
        if self._staged is not None and self._staged.set == first:
            self._programs, self._model, self._staged = self._staged.programs, self._staged.model, None

    def load(self, programs: Sequence[NodeProgram], *, model: int = 0, changes: bool = False) -> None:
        """Load a program into each node, where it stays loaded; programs are ordered by rank.

        Raises ``ProgramTooLongError`` if the commands do not fit in a queue, ``ProgramRunningError`` if a program is
        running, and ``PlanError`` if a program runs a list outside the memory plan. Raises ``ValueError`` if commands
        wait for other nodes but links have no control words or programs differ in length, or if a program has more
        queues than a node with several queues. After an error, nothing is loaded.

        Programs have the same tags on all nodes; nodes with one queue receive commands in the order of tags. With
        ``changes``, only queues that differ from the loaded programs are sent. ``model`` is a number named by runs.
        """
        self._check(programs)
        if self._config.queues > 1:
            known = self._programs if changes and self._all_loaded and model == self._model else []
            self._all_loaded = False
            for queue in range(self._config.queues):
                self._load_queue(programs, queue, model=model, ranks=[
                    rank for rank, program in enumerate(programs)
                    if not known or _queue_of(known[rank], queue) != _queue_of(program, queue)])
        self._programs = [[list(commands) for commands in program] for program in programs]
        self._model = model
        self._all_loaded = True

    def _load_queue(self, programs: Sequence[NodeProgram], queue: int, *, model: int, idle: bool = False,
                    ranks: Sequence[int] | None = None) -> None:
        """Load a queue's program into all nodes, or only into nodes with the given ranks."""
        self._devices.ask(lambda rank, device: device.submit_load_program(
            queue, _named(device, programs[rank], queue), model=model, idle=idle), ranks)

    def _check(self, programs: Sequence[NodeProgram]) -> None:
        """Raise an error for programs that do not fit on the nodes; see :meth:`load`."""
        self._planned.check(command.weight_base for program in programs for queue in program for command in queue
                            if command.operation is Operation.LAYERS)
        if len(programs) != len(self._devices):
            raise ValueError(f"Programs must be one per node, {len(self._devices)}, not {len(programs)}")
        queues = self._config.queues
        if queues > 1:
            most = max(map(len, programs))
            if most > queues:
                raise ValueError(f"Program must be one of at most the {queues} queues that nodes have, not of {most}")
        if _waits_for_nodes(programs):
            if not self._config.has_signals:
                raise ValueError("Nodes must have replay and two queues for commands to wait for other nodes")
            lengths = [tuple(map(len, program)) for program in programs]
            if len(set(lengths)) > 1:
                raise ValueError(f"Queues must have as many commands on each node where commands wait for other "
                                 f"nodes, not {' and '.join(str(length) for length in dict.fromkeys(lengths))}")

    def stage(self, programs: Sequence[NodeProgram], *, model: int | None = None) -> Iterator[None]:
        """Load the idle bank of nodes with two banks; each iteration loads one queue on all nodes. Programs may run
        meanwhile. A pending edit is withdrawn. By default, the program gets the next number.

        Raises ``ProgramTooLongError`` if the commands do not fit in a queue.
        """
        staged = Staged(programs=[[list(commands) for commands in program] for program in programs],
                        model=(self._model + 1) % 256 if model is None else model)
        self._staged = staged
        for queue in range(self._config.queues):
            self._load_queue(staged.programs, queue, model=staged.model, idle=True)
            yield

    def drop_staged(self) -> None:
        """Empty the idle banks and withdraw any pending edit."""
        self._staged = None
        self._devices.ask(lambda rank, device: device.submit_load_program(0, [], idle=True))

    def compare_staged(self, *, number: int) -> None:
        """Make nodes check their idle banks against the digests of the staged programs, by an edit with this number.
        A load without commands then withdraws the edit, leaving the program unchanged.

        Raises ``DeviceError`` if a node has received different words or is in a different set; its idle bank is then
        empty.
        """
        self.edit(number=number, set=self._next_set or 0)
        staged, last = self._staged, self._config.queues - 1
        assert staged is not None
        staged.set, staged.comparisons = None, staged.comparisons + 1
        self._devices.ask(lambda rank, device: device.submit_load_program(
            last, [], slot=len(_queue_of(staged.programs[rank], last)), model=staged.model, idle=True))

    def edit(self, *, number: int, set: int) -> None:
        """Make the staged programs valid from set ``set`` on (the ``first`` of a run), and wait until all nodes have
        acknowledged this. Raises ``DeviceError`` if a node rejects the edit, which is then withdrawn."""
        staged = self._staged
        if staged is None:
            raise ValueError("Programs must be staged before an edit")
        edits = [edit_words(number=number, set=set, digest=digest(device, program, staged))
                 for device, program in zip(self._devices, staged.programs, strict=True)]
        refusals = []
        for answer in [device.submit_edit(edit, f"edit {number} from set {set} on")
                       for device, edit in zip(self._devices, edits, strict=True)]:
            try:
                answer.result()
            except DeviceError as error:
                refusals.append(error)
        if refusals:
            self.drop_staged()
            raise refusals[0]
        staged.set = self._next_set = set

    def run(self, *, collectives: int, passes: int = 1, parity: int = 0, first: int = 0, traced: bool = True,
            on_event: Callable[[int, Event], None] = lambda rank, event: None,
            over: Callable[[], bool] = lambda: False) -> Passes:
        """Run the programs of all nodes, wait for them, and read the traces.

        Raises ``RingError`` if a command failed on any node; the programs stay loaded, but the ring must be reset by
        :meth:`TrainingRing.recover`. Raises ``TraceError`` if a trace is too small for all commands.

        Each pass uses ``collectives`` collective sequence numbers. ``passes``, ``parity`` and ``first`` are as for
        :class:`~host.driver.command.ProgramRun`; the last two have no effect on nodes with one queue. The traces,
        which hold 256 records, are read only if ``traced`` is true. For ``on_event`` and ``over`` see :meth:`play`: a
        run stopped by ``over`` raises no error; the nodes continue the run until :meth:`TrainingRing.recover`.
        """
        if self._config.queues == 1:
            return self.send(passes)
        self._commands.wait()
        since = self._devices.ask(
            lambda rank, device: device.submit_read_register("TRACE_POINTER")) if traced else []
        collective = self._commands.take_numbers(passes * collectives)
        queues = self.play(passes, parity=parity, first=first, collective=collective, collectives=collectives,
                           on_event=on_event, over=over)
        events = [list(itertools.chain(*own)) for own in queues]
        failed = [next((event for event in own if event.status != EventStatus.OK), None) for own in events]
        counts = [passes * sum(map(len, program)) for program in self._programs]
        short = any(len(own) < count for own, count in zip(events, counts, strict=True))
        if any(failed) or (short and not over()):
            self._fail(events, failed, counts)
        traces = [device.trace(int(begun)) for device, begun in zip(self._devices, since, strict=traced)]
        return Passes(events=events, traces=traces, outcome=_outcome(events, traces))

    def play(self, passes: int, *, parity: int = 0, first: int = 0, collective: int = 0, collectives: int = 0,
             patience: int | None = None,
             on_event: Callable[[int, Event], None] = lambda rank, event: None,
             over: Callable[[], bool] = lambda: False) -> list[list[list[Event]]]:
        """Run the loaded programs of nodes with several queues, and take their events, including failures.

        Events are taken from all nodes in rotation, since a node with a full event queue stalls all nodes. If the
        nodes run in step, each poll waits for an event from every node. If they have different numbers of commands,
        or do not wait for each other's gradients, polls are short, so that a node without an event does not delay the
        events of other nodes.

        Raises ``DeviceTimeoutError`` if a node is still running its program, but no command has ended for
        ``patience`` cycles.

        Parameters
        ----------
        passes, parity, first, collective, collectives
            As for :meth:`host.driver.device.Device.run`.
        patience : int, optional
            Maximum number of cycles to poll for an event; must be longer than any command.
        on_event : callable
            Called with the rank of a node and each of its events while the programs run.
        over : callable
            Called after each poll; if it returns True, no more events are taken, and the nodes keep their state.

        Returns
        -------
        list of list of list of Event
            Events of each node and queue, in order; fewer if a command failed.
        """
        self._turn(first)
        self._next_set = (first + passes) % (1 << 16)
        if patience is None:
            patience = 4 * self._devices.timeout + max(
                (command.duration + 2 * command.length for program in self._programs for queue in program
                 for command in queue), default=0)
        number, nodes = self._next_run(), len(self._devices)
        small = nodes <= SMALL_RING  # rank and size are for control words, which only small rings have
        self._devices.ask(lambda rank, device: device.submit_run(ProgramRun(
            passes, model=self._model, parity=parity, collective=collective, collectives=collectives, number=number,
            rank=rank if small else 0, size=nodes if small else 0, first=first)))
        return self._events(passes, patience, on_event, over)

    def _events(self, passes: int, patience: int, on_event: Callable[[int, Event], None],
                over: Callable[[], bool]) -> list[list[list[Event]]]:
        """Take the events of a run; see :meth:`play`."""
        events: list[list[list[Event]]] = [[[] for _ in program] for program in self._programs]
        look, waited = min(patience, self._longest_look), 0
        missing = {rank: count for rank, program in enumerate(self._programs)
                   if (count := passes * sum(map(len, program)))}
        while missing and not over():
            looks = dict(zip(missing, self._devices.ask(
                lambda rank, device: device.submit_pop_event(look), missing), strict=True))
            waited = 0 if any(looks.values()) else waited + look
            for rank, event in looks.items():
                stopped = event is None and not self._devices[rank].read_fields("PROGRAM_STATUS")["running"]
                if stopped:  # an event may have arrived in the meantime
                    event = self._devices[rank].pop_event(0)
                if event is not None:
                    events[rank][event.queue].append(event)
                    missing[rank] -= 1
                    on_event(rank, event)
                elif stopped:
                    missing[rank] = 0  # the run has ended because of a failed command
                elif waited >= patience:
                    raise DeviceTimeoutError(f"{self._devices[rank].name}: no command of the program has ended in "
                                             f"{patience} cycles, and {missing[rank]} events are missing")
            missing = {rank: count for rank, count in missing.items() if count}
        return events

    @property
    def _longest_look(self) -> int:
        """Maximum number of cycles per poll for an event; no limit if all nodes report events at the same time."""
        if any(command.round for program in self._programs for queue in program for command in queue):
            return _SHORT_LOOK
        return _LOOK if len({tuple(map(len, program)) for program in self._programs}) > 1 else (1 << 32) - 1

    def _fail(self, events: list[list[Event]], failed: list[Event | None], counts: list[int]) -> None:
        """Raise the error of a failed run, given each node's failed event or, if none, its last event. A node with
        too few events has not finished its program."""
        decisive = [bad or (own[-1] if len(own) == count and own else None)
                    for own, bad, count in zip(events, failed, counts, strict=True)]
        tag, rank = next(((event.tag, rank) for rank, event in enumerate(failed) if event is not None), (None, 0))
        operations = (command.operation for queue in self._programs[rank] for command in queue if command.tag == tag)
        raise self._commands.diagnose(next(operations, Operation.QUIESCE), decisive)

    def send(self, passes: int = 1) -> Passes:
        """Send the programs' commands to the nodes one by one; nodes may have any number of queues. Raises
        ``RingError`` if a command failed on any node; the commands after it are executed anyway."""
        if not self._programs:
            raise ValueError("Programs must be loaded before they are sent")
        if _waits_for_nodes(self._programs):
            raise ValueError("Commands that wait for other nodes must be run by the nodes, and not be sent")
        self._commands.wait()
        order = sorted((command.tag, queue, position) for queue, commands in enumerate(self._programs[0])
                       for position, command in enumerate(commands))
        pending = [self._submit_step({rank: program[queue][position] for rank, program in enumerate(self._programs)})
                   for _ in range(passes) for _, queue, position in order]
        self._commands.wait(*pending)
        events: list[list[list[Event]]] = [[[] for _ in program] for program in self._programs]
        for (tag, queue, _), result in zip(passes * order, pending, strict=True):
            for rank, event in result.events.items():
                events[rank][queue].append(dataclasses.replace(event, tag=tag))
        together = [list(itertools.chain(*queues)) for queues in events]
        return Passes(events=together, traces=[], outcome=_outcome(together, []))

    def _submit_step(self, step: dict[int, Command]) -> PendingCommand[dict[int, Event]]:
        """Queue one command of the program on each node. LATCH is replaced by QUIESCE if the nodes do not support
        it; this is equivalent, since the driver writes no settings during a pass."""
        operation = step[0].operation
        if operation == Operation.LATCH and not self._commands.knows(operation):
            operation = Operation.QUIESCE
        if operation in self._on_ring:
            fields = [{name: value for name, value in vars(command).items() if name not in _CHOSEN}
                      for command in step.values()]
            return self._commands.submit_together(operation, lambda pending: dict(pending.events), fields)
        return self._commands.submit_apart({rank: dataclasses.replace(command, operation=operation)
                                            for rank, command in step.items()},
                                           patience=max(command.duration for command in step.values()))


def _waits_for_nodes(programs: Sequence[NodeProgram]) -> bool:
    """Whether any command waits for another node."""
    return any(command.remote and command.after_1 for program in programs for queue in program for command in queue)


def _outcome(events: list[list[Event]], traces: list[list[TraceRecord]]) -> Outcome:
    """Compute the outcome of a run that succeeded on all nodes."""
    def flagged(flag: EventFlag) -> tuple[int, ...]:
        return tuple(rank for rank, own in enumerate(events) if any(flag in event.flags for event in own))

    # If two records fall in one cycle, one is delayed, so records may be out of order; times also wrap around.
    cycles: list[Cycles] = []
    for trace in traces:
        times = [(record.time - trace[0].time + (1 << 31)) % (1 << 32) - (1 << 31) for record in trace]
        cycles.append(max(times, default=0) - min(times, default=0))
    if not any(traces):
        cycles = [total(event.cycles for event in own) for own in events]
    return Outcome(cycles=slowest(cycles), local_nan=flagged(EventFlag.LOCAL_NAN),
                   not_finite=flagged(EventFlag.NOT_FINITE))


def _queue_of(program: NodeProgram, queue: int) -> list[Command]:
    """Return the commands of a queue; a program may have fewer queues than a node."""
    return list(program[queue]) if queue < len(program) else []


def _named(device: Device, program: NodeProgram, queue: int) -> list[Command]:
    """Return the commands of a queue, marked with the requesting tenant."""
    return [device.named(command) for command in _queue_of(program, queue)]


def edit_words(*, number: int, set: int, digest: int) -> Words:
    """Build the words of an EDIT, which makes the program in the idle bank valid from set ``set``; ``digest`` is the
    loads' CRC-32, see docs/program.md."""
    return pack(_EDIT, {"number": number, "set": set, "digest": digest}, "Edit's")


def digest(device: Device, program: NodeProgram, staged: Staged) -> int:
    """Digest of all words loaded into a node's idle bank, including loads that withdrew an edit."""
    value, queues = 0, int(device.config.queues)
    for queue in range(queues):
        value = _header(value, staged, queue=queue)
        for command in _named(device, program, queue):
            value = zlib.crc32(command.words().tobytes(), value)
    for _ in range(staged.comparisons):
        value = _header(value, staged, queue=queues - 1, slot=len(_queue_of(program, queues - 1)))
    return value


def _header(before: int, staged: Staged, **fields: int) -> int:
    """Extend a digest by the header of a load."""
    return zlib.crc32(pack(_HEADER, {**fields, "idle": 1, "model": staged.model}, "Program's").tobytes(), before)
