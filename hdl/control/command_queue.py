"""Queues of a node: command queues, which check commands and hold them until they may run, and an event queue."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.command_control import CommandControl
from hdl.control.command_loader import WORDS, CommandLoader, words_loaded
from hdl.control.event_queue import EventQueue
from hdl.control.program_layouts import program_status_layout, program_word_layout
from hdl.control.protocol import QUEUE_DEPTH, EventStatus, Operation, command_layout, descriptor_layout, event_layout
from hdl.control.pushed_commands import PushedCommands
from hdl.control.register_file import queue_status_layout
from hdl.control.registers import RULE, checked_layout
from hdl.control.rejections import Rejections
from hdl.control.remote_after import RemoteAfter, signals_signature
from hdl.control.scoreboard import Scoreboard, others
from hdl.control.sequencer import Sequencer, run_layout
from hdl.control.tenancy import tenancy_layout
from hdl.control.trace import Trace
from hdl.memory import read_signature
from hdl.memory_map import TRACE_WORDS
from hdl.streams.stream import connect_stream

__all__ = ["CommandQueue"]


class CommandQueue(wiring.Component):
    """Queue commands, start each command when it may run, and queue their events.

    There are one to three queues. Commands in the same queue run strictly one after another, and commands in
    different queues run in parallel. Each command has one event; events are in the order in which commands end. A
    pushed command goes to the queue of its operation. While a command runs, the next one of its queue is loaded and
    checked (:class:`~hdl.control.command_checker.CommandChecker`); a command that fails the check is not run, and its
    event gives the reason. A command that has passed the check waits until all flags in ``wait`` are set and its
    predecessor has ended. After another check if a setting has changed, it takes these flags and is offered to the
    engine. When the engine reports ``EventStatus.OK``, the flags in ``signal`` are set. If a command's flags are not
    set within ``timeout`` cycles, it ends with ``WAIT_TIMEOUT`` and takes none; the detail is the missing flags.

    If there are several queues, each has a program, which ``run`` executes for a number of passes, after all commands
    that have already been pushed; commands pushed later wait until the program of their queue has ended. A command of
    a program also waits for commands of other queues (``after``), and ends with ``AFTER_TIMEOUT`` if they do not end
    in time; the detail is ``after`` (15:0), ``lag`` (17:16) and the other queue (25:24). A command that does not end
    with OK ends the run: commands not offered to an engine by then are not started, and have no event.

    In a node with control words, a command of a program may also wait for commands of another node's queue
    (:class:`~hdl.control.remote_after.RemoteAfter`); the detail of its ``AFTER_TIMEOUT`` contains that queue,
    ``remote`` (18) and the node (23:20). A wait for commands restarts as long as another queue of this node is
    running a command, and when another node reports that it is working: it times out only if neither makes progress.

    In a node that counts updates, a command of the first queue's program starts only if its region of weights has had
    the number of updates that its pass requires (:class:`~hdl.features.programs.region_versions.RegionVersions`), and
    ends with ``STALE`` otherwise; the detail is the current version (15:0) and the required version (31:16).

    While ``link_reset`` is held, commands end with ``LINK_RESET`` instead of starting, even if they are already
    waiting: this empties the queues and ends any run.

    ``start`` is valid :attr:`latency` cycles after an empty queue has taken the last word of a QUIESCE, and for any
    other command, later by at most the checker's latency minus one. It is valid at most :attr:`gap` cycles after the
    predecessor has offered its event, if the command is loaded by then and waits for nothing else, and
    :attr:`dependency_latency` cycles after the end of its last dependency.

    A flag that is set while it is being taken stays set. If two commands wait for the same flag, only one takes it.
    While the event queue is full, the next event waits in the engine or in this component, and no other command is
    started, so that no event is lost.

    Parameters
    ----------
    config : NodeConfig
    operations : tuple of OperationDescription
        Operations of the node.
    depth : int
        Capacity of each command queue and of the event queue, 1 to 255.

    Members
    -------
    commands : In(stream of descriptor_layout())
        Words of each command from the host. A command without its last word is dropped silently.
    full : Out(1)
        ``commands`` is not ready because a queue is full.
    start : Out(array of streams of command_layout())
        Commands from each queue to its engines. The payload is stable from ``valid`` until it is taken.
    completions : In(array of streams of event_layout())
        Events from the engines: exactly one for each command that was taken.
    events : Out(stream of 32 bits)
        Events for the host, word by word.
    rule : In(RULE)
        Update rule of the optimizer.
    packed_state : In(1)
        A word of state holds two elements.
    tenancy : In(tenancy_layout(config)), in a node with tenants
    checked : Out(array of checked_layout())
        Settings for the command that each queue offers or, if it offers none, has started last. The command must run
        with them, since the registers may have changed in the meantime.
    link_reset : In(1)
    timeout : In(32)
        Maximum number of cycles that a command may wait.
    weight_version : In(32)
        Weight version for events of commands that were not run.
    set_flags : In(16)
        Flags that the host sets in this cycle.
    flags : Out(16)
    last_error : Out(32)
        First word of the latest event with a status other than OK.
    queue_status : Out(queue_status_layout())
        Combined status of all queues.
    program : In(stream of program_word_layout()), with several queues
        Words of programs; always ready, except during a run; see
        :class:`~hdl.features.programs.program_memory.ProgramMemory`.
    run : In(stream of run_layout()), with several queues
        Ready unless a run is in progress.
    weight_stride : In(32), with several queues
        Distance to the weights of odd passes, for commands with ``alternate``.
    program_status : Out(program_status_layout()), with several queues
    trace : In(read_signature(512 // lanes, lanes)), with several queues
    node_time, trace_pointer : Out(32), with several queues
        See :class:`~hdl.control.trace.Trace`.
    signals : Out(signals_signature(queues)), in a node with control words
    banks, program_bank, program_set, with two banks of programs
        See :func:`~hdl.features.programs.program_banks.banks_members`.
    """

    latency = CommandLoader.latency + 3
    gap = 8
    dependency_latency = Scoreboard.latency + 1

    def __init__(self, *, config, operations, depth=QUEUE_DEPTH):
        if not isinstance(depth, int) or not 1 <= depth <= 255:
            raise ValueError(f"Queue depth must be between 1 and 255, not {depth!r}")
        self._config, self._operations, self._depth = config, operations, depth
        self._queues = queues = config.queues
        self._has_signals = config.has_signals
        self._has_versions = config.programs is not None and config.programs.versions
        self.latency = CommandQueue.latency + words_loaded(config) - WORDS
        lanes = config.lanes
        several = {
            "program": In(stream.Signature(program_word_layout())),
            "run": In(stream.Signature(run_layout())),
            "weight_stride": In(32),
            "program_status": Out(program_status_layout()),
            "trace": In(read_signature(TRACE_WORDS // lanes, lanes)),
            "node_time": Out(32),
            "trace_pointer": Out(32),
            **({"signals": Out(signals_signature(queues))} if self._has_signals else {}),
            **({} if config.programs is None else config.programs.queue_members()),
        }
        super().__init__({
            "commands": In(stream.Signature(descriptor_layout())),
            "full": Out(1),
            "start": Out(stream.Signature(command_layout())).array(queues),
            "completions": In(stream.Signature(event_layout())).array(queues),
            "events": Out(stream.Signature(32)),
            "rule": In(RULE),
            "packed_state": In(1),
            **({"tenancy": In(tenancy_layout(config))} if config.has("tenants") else {}),
            "checked": Out(data.ArrayLayout(checked_layout(), queues)),
            "link_reset": In(1),
            "timeout": In(32),
            "weight_version": In(32),
            "set_flags": In(16),
            "flags": Out(16),
            "last_error": Out(32),
            "queue_status": Out(queue_status_layout()),
            **(several if queues > 1 else {}),
        })

    @property
    def depth(self):
        return self._depth

    @property
    def queues(self):
        return self._queues

    def elaborate(self, platform):
        m = Module()
        m.submodules.pushed = pushed = PushedCommands(
            operations=self._operations, queues=self._queues, depth=self._depth)
        m.submodules.loader = loader = CommandLoader(
            config=self._config, operations=self._operations, queues=self._queues)
        m.submodules.ended = ended = EventQueue(queues=self._queues, depth=self._depth)
        controls = [CommandControl() for _ in range(self._queues)]
        for n, control in enumerate(controls):
            m.submodules[f"control_{n}"] = control

        connect_stream(m, self.commands, pushed.commands)
        connect_stream(m, ended.events, self.events)
        m.d.comb += [
            self.full.eq(pushed.full),
            pushed.serving.eq(loader.serving),
            pushed.word.eq(loader.word),
            loader.pushed_data.eq(pushed.data),
            loader.rule.eq(self.rule),
            loader.packed_state.eq(self.packed_state),
            loader.dismiss.eq(Cat(control.dismiss for control in controls).any()),
            self.last_error.eq(ended.last_error),
            self.queue_status.running.eq(Cat(control.running for control in controls).any()),
            self.queue_status.waiting.eq(Cat(control.waiting for control in controls).any()),
            self.queue_status.commands.eq(sum(pushed.levels, Const(0))),
            self.queue_status.events.eq(ended.level),
        ]
        for n, control in enumerate(controls):
            self._queue(m, n, control, loader, ended)
        self._flags(m, controls)
        if self._config.has("tenants"):
            m.d.comb += loader.tenancy.eq(self.tenancy)
        if self._queues == 1:
            (control,) = controls
            m.d.comb += [
                control.available.eq(pushed.levels[0] != 0), control.holds.eq(1), control.right.eq(1),
                pushed.removed.eq(control.removed)]
            self._reject(m, controls, loader, ended, lambda n: Const(0, 32), Const(0, 32))
        else:
            self._programs(m, controls, pushed, loader, ended)
        return m

    def _queue(self, m, n, control, loader, ended):
        """Connect the control logic of one queue to the loader, the engines and the event queue."""
        settings, kept = Signal(checked_layout(), name=f"settings_{n}"), Signal(checked_layout(), name=f"kept_{n}")
        connect_stream(m, control.start, self.start[n])
        connect_stream(m, self.completions[n], ended.completions[n])
        m.d.comb += [
            settings.rule.eq(self.rule),
            settings.packed_state.eq(self.packed_state),
            control.granted.eq(loader.granted[n]),
            control.passed.eq(loader.passed[n]),
            control.refused.eq(loader.refused[n]),
            control.deferred.eq(loader.deferred[n]),
            control.head.eq(loader.heads[n]),
            control.stale.eq(settings != kept),
            control.flags.eq(self.flags),
            control.link_reset.eq(self.link_reset),
            control.timeout.eq(self.timeout),
            control.completion.eq(self.completions[n].valid),
            control.good.eq(self.completions[n].payload.status == EventStatus.OK),
            loader.wanted[n].eq(control.wanted),
            loader.deliver[n].eq(control.deliver),
        ]
        with m.If(control.passed):
            m.d.sync += kept.eq(loader.checked)
        with m.If(control.goes):
            m.d.sync += self.checked[n].eq(kept)

    def _flags(self, m, controls):
        """Store the flags, and let only one queue at a time take flags."""
        taken, signalled = Const(0, 16), Const(0, 16)
        for n, control in enumerate(controls):
            taken, signalled = taken | control.taken, signalled | control.given
            ahead = [other.takes for other in controls[:n]]
            ahead += [other.start.valid & other.needs_flags for other in controls if other is not control]
            m.d.comb += control.blocked.eq(control.needs_flags & Cat(ahead).any())
        m.d.sync += self.flags.eq(self.flags & ~taken | signalled | self.set_flags)

    def _reject(self, m, controls, loader, ended, after, stale):
        """Generate the events of rejected commands. ``after`` is a function that returns the detail of AFTER_TIMEOUT
        for a queue, and ``stale`` is the detail of STALE."""
        m.submodules.rejections = rejections = Rejections(queues=self._queues)
        connect_stream(m, rejections.o, ended.rejected)
        m.d.comb += [
            rejections.verdict.eq(loader.verdict), rejections.stale.eq(stale),
            rejections.weight_version.eq(self.weight_version),
        ]
        for n, control in enumerate(controls):
            rejection, run = rejections.i[n], self.completions[n].valid & self.completions[n].ready
            m.d.comb += [
                rejection.rejected.eq(control.rejected), rejection.reason.eq(control.reason),
                rejection.tag.eq(loader.heads[n].tag), rejection.count.eq(control.count),
                rejection.missing.eq(control.missing), rejection.after.eq(after(n)),
                control.queued.eq(Mux(control.rejected, rejections.taken[n], run)),
            ]

    def _programs(self, m, controls, pushed, loader, ended):
        """Connect sequencers, scoreboard and trace."""
        queues = range(self._queues)
        m.submodules.programs = programs = self._config.programs.make_memory(self._queues)
        m.submodules.scoreboard = scoreboard = Scoreboard(queues=self._queues)
        m.submodules.trace = trace = Trace(queues=self._queues, lanes=self._config.lanes)
        sequencers = [Sequencer(depth=self._config.programs.depth) for _ in queues]
        active = Cat(sequencer.active for sequencer in sequencers)
        running, stop = Signal(), Signal()
        taken = Signal()
        run = Signal(run_layout())  # the current run

        connect_stream(m, self.program, programs.program)
        wiring.connect(m, node=wiring.flipped(self.trace), trace=trace.read)
        # `running` rises one cycle after a run starts, and falls one cycle after it ends.
        m.d.sync += running.eq(taken | (active | Cat(control.busy for control in controls)).any())
        m.d.comb += [
            self.run.ready.eq(~running),
            taken.eq(self.run.valid & ~running),
            programs.serving.eq(loader.serving),
            programs.slot.eq(sequencers[0].slot),
            programs.word.eq(loader.word),
            loader.program_data.eq(programs.data),
            loader.weight_stride.eq(self.weight_stride),
            loader.place.rank.eq(run.rank),
            loader.place.size.eq(run.size),
            scoreboard.clear.eq(taken),
            scoreboard.active.eq(active),
            scoreboard.lengths.eq(programs.lengths),
            self.program_status.running.eq(running),
            self.program_status.loaded.eq(programs.lengths.as_value().any()),
            self.program_status.model.eq(programs.model),
            self.program_status.passes.eq(sequencers[-1].passes),
            self.node_time.eq(trace.node_time),
            self.trace_pointer.eq(trace.pointer),
        ]
        m.d.sync += stop.eq(Cat(control.failed for control in controls).any())
        with m.If(taken):
            m.d.sync += [self.program_status.stopped.eq(0), run.eq(self.run.payload)]
        with m.Elif(stop):
            m.d.sync += self.program_status.stopped.eq(1)
        with m.If(self.link_reset):
            m.d.sync += run.number.eq(0)
        self._config.programs.connect_banks(m, self, programs)
        missing = self._remote(m, controls, loader, sequencers, scoreboard, taken=taken, run=run)
        ready, stale, versions = self._versions(m, controls, loader, sequencers, taken=taken)
        for n, (control, sequencer) in enumerate(zip(controls, sequencers, strict=True)):
            m.submodules[f"sequencer_{n}"] = sequencer
            settings = Signal(run_layout(), name=f"run_{n}")  # settings of the run that a queue executes
            ahead = Signal.like(pushed.levels[n], name=f"ahead_{n}")  # commands that were pushed before the run
            head = loader.heads[n]
            m.d.comb += [
                settings.eq(self.run.payload),
                settings.collectives.eq(run.collectives),
                sequencer.run.eq(settings),
                sequencer.start.eq(taken),
                sequencer.stop.eq(stop),
                sequencer.length.eq(programs.lengths[n]),
                sequencer.advance.eq(control.removed & control.head_of_program),
                control.of_program.eq(sequencer.active & (ahead == 0)),
                control.available.eq(Mux(control.of_program, ~scoreboard.held[n], pushed.levels[n] != 0)),
                control.holds.eq((scoreboard.holds[n] & ~missing[n] & ready[n]) | ~control.head_of_program),
                control.stop.eq(stop),
                pushed.removed[n].eq(control.removed & ~control.head_of_program),
                loader.from_program[n].eq(control.head_of_program),
                loader.passes[n].eq(sequencer.current),
                scoreboard.begins[n].eq(sequencer.begins),
                scoreboard.done[n].eq(control.done),
                trace.started[n].eq(control.started),
                trace.ended[n].eq(control.ended),
                trace.tags[n].eq(control.tag),
                trace.versions[n].eq(versions[n]),
            ]
            with m.If(loader.serving == n):
                m.d.comb += programs.slot.eq(sequencer.slot)
            with m.If(taken):
                m.d.sync += ahead.eq(pushed.levels[n] - pushed.removed[n])
            with m.Else():
                m.d.sync += ahead.eq(ahead - (pushed.removed[n] & (ahead != 0)))
            for index in range(self._queues - 1):
                wait = scoreboard.after[n][index]
                m.d.comb += [wait.after.eq(head[f"after_{index}"]), wait.lag.eq(head[f"lag_{index}"])]

        def after(n):
            """Return the event detail for an unmet dependency of queue ``n``. If several are unmet, this node and
            lower-numbered queues take precedence."""
            head = loader.heads[n]
            here = [Cat(head[f"after_{index}"], head[f"lag_{index}"], Const(0, 6), Const(other, 8))
                    for index, other in enumerate(others(n, self._queues))]
            if self._has_signals:
                there = Cat(head.after_1, head.lag_1, Const(1, 1), Const(0, 1), head.unit[:4], head.unit_queue)
                here = [Mux(scoreboard.holds[n], there, here[0])]
            return here[0] if len(here) == 1 else Mux(scoreboard.missing[n][0], *here)

        self._reject(m, controls, loader, ended, after, stale)

    def _versions(self, m, controls, loader, sequencers, *, taken):
        """Connect the update counters; return which queues are ready, the STALE detail and the versions for the
        trace."""
        traced = [Signal(13, name=f"version_{n}") for n in range(self._queues)]
        if not self._has_versions:
            m.d.comb += [control.right.eq(1) for control in controls]
            return Const((1 << self._queues) - 1, self._queues), Const(0, 32), traced
        m.submodules.versions = versions = self._config.programs.make_versions()
        computing, updating = controls[0], controls[1]
        counted = Signal()  # the running update will be counted when it ends

        def region(n):
            head = loader.heads[n]
            return [("region", head.region), ("apart", head.apart), ("odd", sequencers[n].current.odd)]

        m.d.comb += [
            versions.clear.eq(taken & (self.run.payload.first == 0)),
            *(versions.head[name].eq(value) for name, value in region(0)),
            *(versions.update[name].eq(value) for name, value in region(1)),
            versions.number.eq(sequencers[0].current.number),
            versions.begun.eq(updating.started & updating.head_of_program & (loader.heads[1].region != 0)
                              & (loader.heads[1].operation == Operation.FUSED_UPDATE)),
            versions.ended.eq(updating.done & counted),
            computing.right.eq(versions.right | ~computing.head_of_program),
            *(control.right.eq(1) for control in controls[1:]),
        ]
        with m.If(updating.started):
            m.d.sync += counted.eq(versions.begun)
        with m.If(computing.started):
            m.d.sync += traced[0].eq(Mux(computing.head_of_program & (loader.heads[0].region != 0),
                                         versions.version, 0))
        ready = Cat(~versions.busy | (head.region == 0) for head in loader.heads)
        return ready, Cat(versions.version, versions.expected), traced

    def _remote(self, m, controls, loader, sequencers, scoreboard, *, taken, run):
        """Connect the unit that checks dependencies on other nodes; return which queues have an unmet one."""
        works = [control.running & ~control.known for control in controls]
        alive = Const(0, 1)
        missing = Const(0, self._queues)
        if self._has_signals:
            m.submodules.remote = remote = RemoteAfter(queues=self._queues)
            alive, missing = self.signals.alive, remote.missing
            m.d.comb += [
                remote.clear.eq(taken),
                remote.lengths.eq(scoreboard.lengths),
                remote.early.eq(scoreboard.early),
                remote.bases.eq(scoreboard.bases),
                remote.begins.eq(Cat(sequencer.begins for sequencer in sequencers)),
                remote.count.eq(self.signals.count),
                remote.current.eq(self.signals.current),
                self.signals.of_node.eq(remote.of_node),
                self.signals.of_queue.eq(remote.of_queue),
                self.signals.place.eq(loader.place),
                self.signals.run.eq(run.number),
                self.signals.done.eq(scoreboard.counts),
                # Collectives have their own time-outs.
                self.signals.at_work.eq(Cat(work & control.run_of_program for work, control in zip(
                    works[:-1], controls[:-1], strict=True)).any()),
            ]
            for n, head in enumerate(loader.heads):
                wait = remote.after[n]
                m.d.comb += [
                    wait.after.eq(head.after_1), wait.lag.eq(head.lag_1), wait.queue.eq(head.unit_queue),
                    wait.remote.eq(head.remote), wait.unit.eq(head.unit),
                ]
        for n, control in enumerate(controls):
            m.d.comb += control.alive.eq(Cat(alive, *(works[other] for other in others(n, self._queues))).any())
        return missing
