"""Loader that copies commands from memory to the heads of their queues, where they are checked."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.command_checker import CommandChecker, verdict_layout
from hdl.control.program_layouts import check_queues
from hdl.control.protocol import DESCRIPTOR_WORDS, EventStatus, command_layout
from hdl.control.registers import RULE, checked_layout
from hdl.control.sequencer import pass_layout, place_layout
from hdl.control.tenancy import tenancy_layout

__all__ = ["WORDS", "CommandLoader", "words_loaded"]

#: Number of words loaded per command, unless :func:`words_loaded` adds one; later words are reserved.
WORDS = 12

#: Index of the word that is loaded first: it controls waiting and the changes to later words, so it is needed early.
FIRST_WORD = 8


def words_loaded(config):
    """Return how many words of a command a node of this configuration loads. Few nodes need the last word, which
    contains ``root_reduce``, ``format`` and ``entry``."""
    return WORDS + (config.role.root_reduce or config.role.broadcast_formats)


class CommandLoader(wiring.Component):
    """Load and check the next command of each queue, one queue at a time.

    A single loader and checker serve all queues, since each command is loaded while its predecessor runs. A command
    that is ``wanted`` while the loader is idle is ``granted`` in the same cycle, and its words are requested from the
    next cycle on. The words of a program's command are modified as they are loaded: in the second queue, which uses
    the ring, the pass's ``collective`` is added to the collective number, and in odd passes ``weight_stride`` is
    added to the weight base of commands with ``alternate``.

    There are three verdicts. For a QUIESCE, the verdict follows the grant by :attr:`latency` cycles; for any other
    command, it is later by at most the checker's latency minus one:

    - ``passed``, for one cycle;
    - ``refused``, if the queue can use the verdict now (``deliver``): loader and verdict are held until ``dismiss``;
    - ``deferred``, for one cycle, if the predecessor of a refused command is still running: it will be loaded again.

    Parameters
    ----------
    config : NodeConfig
        Sizes of the memories, and of the largest ring.
    operations : tuple of OperationDescription
        Operations of the node.
    queues : int
        Number of queues, 1 to 3. A single queue has no program.

    Members
    -------
    wanted : In(queues)
        Whether a queue has a command in memory and a free head.
    granted : Out(queues)
    serving, word : Out
        Queue and address of the word to read.
    pushed_data : In(32)
        Word of the oldest pushed command, for the address in the previous cycle.
    from_program : In(queues), with several queues
        Whether the command belongs to the program.
    program_data : In(32), with several queues
        Word of the program, for the address in the previous cycle.
    passes : In(array of pass_layout()), with several queues
    weight_stride : In(32), with several queues
    place : In(place_layout()), with several queues
        The node's position on the ring of its control words.
    heads : Out(array of command_layout())
        A requested word is available three cycles later.
    passed, refused, deferred : Out(queues)
    deliver : In(queues)
    dismiss : In(1)
    verdict : Out(verdict_layout())
        Valid while ``refused`` is high.
    rule, packed_state, tenancy : In
        ``tenancy`` is present only in a node with tenants.
    checked : Out(checked_layout())
        Settings used for the verdict.
    """

    #: Latency in cycles from the grant to the verdict on a QUIESCE, if :data:`WORDS` words are loaded.
    latency = WORDS + 4

    def __init__(self, *, config, operations, queues=1):
        check_queues(queues)
        self._config = config
        self._operations = tuple(operations)
        self._queues = queues
        self._words_loaded = words_loaded(config)
        self.latency = self._words_loaded + 4
        several = {
            "from_program": In(queues),
            "program_data": In(32),
            "passes": In(data.ArrayLayout(pass_layout(), queues)),
            "weight_stride": In(32),
            "place": In(place_layout()),
        }
        super().__init__({
            "wanted": In(queues),
            "granted": Out(queues),
            "serving": Out(range(max(queues, 2))),
            "word": Out(range(DESCRIPTOR_WORDS)),
            "pushed_data": In(32),
            **(several if queues > 1 else {}),
            "heads": Out(data.ArrayLayout(command_layout(), queues)),
            "passed": Out(queues),
            "refused": Out(queues),
            "deferred": Out(queues),
            "deliver": In(queues),
            "dismiss": In(1),
            "verdict": Out(verdict_layout()),
            "rule": In(RULE),
            "packed_state": In(1),
            **({"tenancy": In(tenancy_layout(config))} if config.has("tenants") else {}),
            "checked": Out(checked_layout()),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.checker = checker = CommandChecker(
            config=self._config, operations=self._operations, queues=self._queues)
        asked = Signal()  # a word is requested in this cycle
        chosen = Signal(self._queues)  # one-hot: queue of the requested word
        stages = [(Signal(name=f"valid_{n}"), Signal.like(self.word, name=f"word_{n}")) for n in range(2)]
        value = Signal(32)  # word that was read, before changes for the pass are added
        shifted = Signal(32)
        copy = Signal(command_layout())  # the command being loaded, as seen by the checker

        before = (asked, self.word)
        for valid, word in stages:
            m.d.sync += [valid.eq(before[0]), word.eq(before[1])]
            before = (valid, word)
        valid, word = before
        self._words(m, stages[0][1], value, shifted, chosen)
        with m.If(valid):
            with m.Switch(word):
                for n in range(self._words_loaded):
                    slot = slice(32 * n, 32 * n + 32)
                    with m.Case(n):
                        m.d.sync += copy.as_value()[slot].eq(shifted)
                        for queue in range(self._queues):
                            with m.If(chosen[queue]):
                                m.d.sync += self.heads[queue].as_value()[slot].eq(shifted)

        if self._queues > 1:
            m.d.comb += [
                checker.asking.eq(self.serving),
                checker.from_program.eq((chosen & self.from_program).any()),
                checker.place.eq(self.place),
            ]
        good = checker.o.payload.status == EventStatus.OK
        now = (chosen & self.deliver).any()
        m.d.comb += [
            checker.i.payload.eq(copy),
            checker.rule.eq(self.rule),
            checker.packed_state.eq(self.packed_state),
            self.verdict.eq(checker.o.payload),
            self.checked.eq(checker.checked),
        ]
        if self._config.has("tenants"):
            m.d.comb += checker.tenancy.eq(self.tenancy)
        with m.FSM():
            with m.State("Choose"):
                self._choose(m, chosen)
                m.d.sync += self.word.eq(FIRST_WORD)
                with m.If(self.wanted.any()):
                    m.next = "Read"

            with m.State("Read"):
                m.d.comb += asked.eq(1)
                m.d.sync += self.word.eq(Mux(self.word == self._words_loaded - 1, 0, self.word + 1))
                with m.If(self.word == FIRST_WORD - 1):
                    m.next = "Settle"

            with m.State("Settle"):
                with m.If(~stages[0][0]):
                    m.next = "Check"

            with m.State("Check"):
                m.d.comb += checker.i.valid.eq(1)
                with m.If(checker.o.valid):
                    with m.If(good):
                        m.d.comb += [self.passed.eq(chosen), checker.o.ready.eq(1)]
                    with m.Elif(now):
                        m.d.comb += [self.refused.eq(chosen), checker.o.ready.eq(self.dismiss)]
                    with m.Else():
                        m.d.comb += [self.deferred.eq(chosen), checker.o.ready.eq(1)]
                with m.If(checker.o.valid & checker.o.ready):
                    m.next = "Choose"
        return m

    def _words(self, m, following, value, shifted, chosen):
        """Register the requested word from one of the memories, then add what the current pass adds to it."""
        if self._queues == 1:
            m.d.sync += value.eq(self.pushed_data)
            m.d.comb += shifted.eq(value)
            return
        addend = Signal(32)
        alternate = Signal()
        of_program = (chosen & self.from_program).any()
        odd = Signal()
        layout = command_layout()
        m.d.comb += odd.eq((chosen & Cat(current.odd for current in self.passes)).any())
        m.d.sync += [value.eq(Mux(of_program, self.program_data, self.pushed_data)), addend.eq(0)]
        with m.If(following == layout["alternate"].offset // 32):
            m.d.sync += alternate.eq(self.program_data[layout["alternate"].offset % 32])
        with m.If(of_program):
            with m.If((following == layout["weight_base"].offset // 32) & alternate & odd):
                m.d.sync += addend.eq(self.weight_stride)
            # Only commands of the second queue have collective numbers.
            with m.If((following == layout["collective"].offset // 32) & chosen[1]):
                m.d.sync += addend.eq(self.passes[1].collective << layout["collective"].offset % 32)
            if self._config.has_quorum:
                number = Signal(16)
                for queue, current in enumerate(self.passes):
                    with m.If(chosen[queue]):
                        m.d.comb += number.eq(current.number)
                with m.If(following == layout["number"].offset // 32):
                    m.d.sync += addend.eq(number << layout["number"].offset % 32)
        m.d.comb += shifted.eq(value + addend)

    def _choose(self, m, chosen):
        """Grant the loader to one of the queues that request it, in round-robin order."""
        queues = self._queues
        with m.Switch(self.serving):
            for latest in range(queues):
                with m.Case(latest):
                    for n in reversed(range(latest + 1, latest + 1 + queues)):
                        with m.If(self.wanted[n % queues]):
                            m.d.comb += self.granted.eq(1 << n % queues)
                            m.d.sync += self.serving.eq(n % queues)
        with m.If(self.wanted.any()):
            m.d.sync += chosen.eq(self.granted)
