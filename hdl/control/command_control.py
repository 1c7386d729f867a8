"""Control of one command queue: starts its commands, and handles the end of each one."""

import enum

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import command_layout

__all__ = ["CommandControl", "Rejection"]


class Rejection(enum.IntEnum):
    """Reason for not running a command."""

    VERDICT = 0
    """The checker has refused the command."""
    LINK_RESET = 1
    FLAGS = 2
    """The flags that the command waits for were not set in time."""
    AFTER = 3
    """Commands that the command depends on have not ended in time."""
    STALE = 4
    """The command's region of weights does not have the number of updates that its pass requires."""


class CommandControl(wiring.Component):
    """Start the commands of one queue, strictly one after another, each when its conditions are met.

    While a command runs, the next one is loaded and checked. When the running command has ended, the next one starts
    as soon as its flags are set and its dependencies are met. It is loaded and checked again if a setting has changed
    since the check (``stale``), and rejected if it has waited for ``timeout`` cycles, or while ``link_reset`` is
    held. Loading a command again does not restart its wait; ``timeout`` is sampled in the cycle before the rejection.
    If only dependencies are missing, the wait restarts in every cycle in which ``alive`` is high. A command of a
    program has ``failed`` if it is rejected, or ends with a status other than OK. ``stop`` drops the next command of
    a program, without an event, unless it is already offered at ``start`` or its event is pending.

    ``start`` is valid in the cycle after the predecessor's event was taken if the next command has passed the check
    and does not wait for flags; otherwise, two cycles after its last condition is met.

    Members
    -------
    available : In(1)
        Another command is in memory, after the command at the head.
    of_program : In(1)
        That command belongs to the program.
    wanted, granted, passed, refused, deferred, deliver, dismiss : In or Out(1)
        This queue's bits of :class:`~hdl.control.command_loader.CommandLoader`; ``dismiss`` is for this queue only.
    head : In(command_layout())
        Command at the head, as loaded by the loader.
    head_of_program : Out(1)
        The command at the head belongs to the program.
    stale : In(1)
        Settings have changed since the command was checked.
    holds : In(1)
        The dependencies of the command at the head are met. Stays 1 until the command has started.
    alive : In(1)
        Commands that the dependencies refer to may be in progress.
    right : In(1)
        The command's region of weights has the required version; valid when its dependencies are met.
    blocked : In(1)
        Another queue is about to take flags.
    flags, link_reset, timeout : In
    stop : In(1)
    start : Out(stream of command_layout())
        Command to the engine.
    completion : In(1)
        The engine offers the event of the running command.
    good : In(1)
        The status of the event is OK.
    rejected : Out(1)
        The command at the head will not run; its event is being offered.
    reason : Out(Rejection)
    queued : In(1)
        The event of an engine, or of a rejection, is taken in this cycle.
    count : Out(32)
        Number of cycles that the command at the head has waited, plus one.
    missing : Out(16)
        Flags that were still missing when a command was rejected.
    needs_flags : Out(1)
        The command at the head waits for at least one flag.
    takes : Out(1)
        The command at the head, which will take flags, proceeds to ``start`` in this cycle.
    goes : Out(1)
        ``start`` is valid in the next cycle, but not in this one.
    removed : Out(1)
        The command at the head has left the queue: it was started, or it is certain to be rejected.
    taken, given : Out(16)
        Flags that the command takes when it starts, and flags that it sets when it ends.
    started, ended : Out(1)
        The engine takes a command; the engine offers an event, in the first such cycle.
    done, failed : Out(1)
        A command of the program ends with OK, or fails.
    tag : Out(16)
        Tag of the most recently started command.
    loading : Out(1)
        The loader is working for this queue.
    loaded : Out(1)
        The command at the head has passed the check.
    run_of_program : Out(1)
        The running command belongs to the program.
    known : Out(1)
        The end of the running command has been seen.
    busy : Out(1)
        A command of a program is at the head, or is running.
    running, waiting : Out(1)
    """

    def __init__(self):
        super().__init__({
            "available": In(1),
            "of_program": In(1),
            "wanted": Out(1),
            "granted": In(1),
            "passed": In(1),
            "refused": In(1),
            "deferred": In(1),
            "deliver": Out(1),
            "dismiss": Out(1),
            "head": In(command_layout()),
            "head_of_program": Out(1),
            "stale": In(1),
            "holds": In(1),
            "alive": In(1),
            "right": In(1),
            "blocked": In(1),
            "flags": In(16),
            "link_reset": In(1),
            "timeout": In(32),
            "stop": In(1),
            "start": Out(stream.Signature(command_layout())),
            "completion": In(1),
            "good": In(1),
            "rejected": Out(1),
            "reason": Out(Rejection),
            "queued": In(1),
            "count": Out(32, init=1),
            "missing": Out(16),
            "needs_flags": Out(1),
            "takes": Out(1),
            "goes": Out(1),
            "removed": Out(1),
            "taken": Out(16),
            "given": Out(16),
            "started": Out(1),
            "ended": Out(1),
            "done": Out(1),
            "failed": Out(1),
            "tag": Out(16),
            "loading": Out(1),
            "loaded": Out(1),
            "run_of_program": Out(1),
            "known": Out(1),
            "busy": Out(1),
            "running": Out(1),
            "waiting": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        again = Signal()  # load the command again: it was refused while another command was running
        dropped = Signal()  # discard the command that is being loaded
        signal = Signal(16)
        late, never = Signal(), Signal()
        was_waiting = Signal()
        missing = Signal(16)
        alone, drop, may, direct = Signal(), Signal(), Signal(), Signal()
        reject = Signal()
        patient = Signal()  # the command may wait longer: its time-out restarts

        m.d.comb += [
            self.start.payload.eq(self.head),
            missing.eq(self.head.wait & ~self.flags),
            self.needs_flags.eq(self.head.wait != 0),
            self.wanted.eq(self.available & ~self.loading & ~self.loaded & (~again | alone) & ~self.stop),
            self.deliver.eq((alone & ~dropped) | (self.rejected & (self.reason == Rejection.VERDICT))),
            drop.eq(self.stop & self.head_of_program),
            may.eq(self.loaded & self.holds & ~self.stale & ~self.link_reset & ~drop),
            direct.eq(may & self.right & ~self.needs_flags),
            self.ended.eq(self.running & self.completion & ~self.known),
            self.done.eq(self.ended & self.run_of_program & self.good),
            self.failed.eq((self.ended & self.run_of_program & ~self.good) | (reject & self.head_of_program)),
            self.busy.eq(
                ((self.loading | self.loaded) & self.head_of_program) | (self.running & self.run_of_program)),
        ]
        # The comparison with the time-out takes a cycle, so the count, from the start of the wait, is one ahead.
        m.d.sync += [
            late.eq((self.count >= self.timeout) & ~patient), never.eq(self.timeout == 0),
            was_waiting.eq(self.waiting),
        ]
        with m.If(self.ended):
            m.d.sync += self.known.eq(1)
        with m.If(~self.rejected):
            m.d.sync += self.missing.eq(missing)

        with m.If(self.granted):
            m.d.sync += [self.loading.eq(1), again.eq(0), self.head_of_program.eq(self.of_program)]
        with m.If(self.passed):
            m.d.sync += [self.loading.eq(0), self.loaded.eq(~dropped & ~drop), dropped.eq(0)]
        with m.Elif(self.deferred):
            m.d.sync += [self.loading.eq(0), again.eq(~dropped & ~drop), dropped.eq(0)]
        with m.Elif(self.loading & drop & ~self.rejected):
            m.d.sync += dropped.eq(1)
        with m.If(drop):
            m.d.sync += again.eq(0)

        def start():
            m.d.comb += self.goes.eq(1)
            m.next = "Start"

        def leave():
            """Make the head of the queue free for the next command."""
            m.d.comb += self.removed.eq(1)
            m.d.sync += self.loaded.eq(0)

        def refuse(reason):
            m.d.comb += reject.eq(1)
            m.d.sync += self.reason.eq(reason)
            m.next = "Reject"

        with m.FSM():
            with m.State("Alone"):
                m.d.comb += alone.eq(1)
                with m.If(self.refused & ~drop):
                    refuse(Rejection.VERDICT)
                with m.Elif(self.loaded):
                    with m.If(drop):
                        m.d.sync += self.loaded.eq(0)
                    with m.Elif(self.stale):
                        m.d.sync += self.loaded.eq(0)
                    with m.Elif(self.link_reset):
                        refuse(Rejection.LINK_RESET)
                    with m.Elif(may & (missing == 0) & ~self.blocked & ~self.right):
                        refuse(Rejection.STALE)
                    with m.Elif(may & (missing == 0) & ~self.blocked):
                        start()
                        m.d.comb += self.takes.eq(self.needs_flags)
                    with m.Else():
                        m.d.comb += [self.waiting.eq(1), patient.eq(self.alive & (missing == 0) & ~self.holds)]
                        with m.If(patient):
                            m.d.sync += self.count.eq(1)
                        with m.Elif(((late & was_waiting) | never) & ((missing != 0) | ~self.holds)):
                            refuse(Mux(missing != 0, Rejection.FLAGS, Rejection.AFTER))
                        with m.Else():
                            m.d.sync += self.count.eq(self.count + 1)

            with m.State("Start"):
                m.d.comb += self.start.valid.eq(1)
                with m.If(self.start.ready):
                    leave()
                    m.d.comb += [self.started.eq(1), self.taken.eq(self.head.wait)]
                    m.d.sync += [
                        signal.eq(self.head.signal), self.tag.eq(self.head.tag), self.known.eq(0),
                        self.run_of_program.eq(self.head_of_program),
                    ]
                    m.next = "Run"

            with m.State("Run"):
                m.d.comb += self.running.eq(1)
                with m.If(drop):
                    m.d.sync += self.loaded.eq(0)
                with m.If(self.completion & self.queued):
                    with m.If(self.good):
                        m.d.comb += self.given.eq(signal)
                    m.next = "Alone"
                    with m.If(direct):
                        start()

            with m.State("Reject"):
                m.d.comb += [self.rejected.eq(1), self.dismiss.eq(self.queued & (self.reason == Rejection.VERDICT))]
                with m.If(self.queued):
                    leave()
                    m.d.sync += [self.loading.eq(0), dropped.eq(0)]
                    m.next = "Alone"
        # This assignment comes last, with its own condition, so that synthesis uses the flip-flops' set and reset.
        with m.If(self.removed | (drop & ~self.rejected)):
            m.d.sync += self.count.eq(1)
        return m
