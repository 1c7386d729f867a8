"""Program banks: one runs while the other is loaded, and an edit swaps them."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.checksum import crc_after
from hdl.control.program_layouts import bank_state_layout, begins_bank, program_header_layout, program_word_layout
from hdl.control.protocol import Status
from hdl.control.sequencer import run_layout

__all__ = ["BanksSignature", "ProgramBanks", "bank_layout", "banks_members", "connect_banks", "edit_layout",
           "set_layout"]


def edit_layout():
    """Layout of an edit, two words: its ``number``, the first ``set`` of its program, and the program's ``digest``, a
    CRC-32 of all words loaded into the idle bank."""
    return data.StructLayout({"number": 16, "set": 16, "digest": 32})


def bank_layout():
    """Layout of the banks' state: the running bank, whether an edit is pending, and the number of the active edit."""
    return data.StructLayout({"bank": 1, "pending": 1, "reserved": 14, "number": 16})


def set_layout():
    """Layout of two numbers: ``set`` is the number of the set that is running or, if none is, that ran last;
    ``latest`` is the number of the edit accepted last."""
    return data.StructLayout({"set": 16, "latest": 16})


class BanksSignature(wiring.Signature):
    """Requests for edits and runs, as seen from the host port.

    Members
    -------
    edit : Out(edit_layout())
    ask : Out(1)
        High for one cycle to check an edit.
    verdict : In(Status)
        Result of the check, in the same cycle; with OK, the edit is accepted.
    run : Out(run_layout())
        Next run; held until it has begun.
    loaded : In(1)
        The bank that ``run`` will use contains the named program.
    turn : Out(1)
        The run will begin in the next cycle; if the banks are swapped, it happens now.
    """

    def __init__(self):
        super().__init__({
            "edit": Out(edit_layout()), "ask": Out(1), "verdict": In(Status),
            "run": Out(run_layout()), "loaded": In(1), "turn": Out(1),
        })


class ProgramBanks(wiring.Component):
    """Select the running bank and check edits.

    Programs take effect at sets, which are numbered by passes: the set of a run is its ``first``, the number of
    passes before the run. An edit is accepted if it is newer than the latest one, is for the set after the latest
    run, and has the digest of the idle bank, which must not be empty. It waits until a run begins with its set. In
    that cycle, the banks of all queues are swapped, never during a run. A run that begins with a different set leaves
    the edit waiting, and uses the current bank. A header for the idle bank cancels a waiting edit; its number cannot
    be used again.

    The digest restarts with a header for queue 0 and slot 0 of the idle bank, and covers all words loaded into that
    bank, including headers. It equals their zlib CRC-32. After a swap there is no digest.

    ``verdict`` and ``loaded`` depend combinationally on ``host.edit`` and on ``host.run``; ``bank`` is a register.

    Members
    -------
    host : In(BanksSignature())
    load : In(1)
        ``word`` is loaded in this cycle.
    word : In(program_word_layout())
    current, idle : In(bank_state_layout())
    bank : Out(1)
    status : Out(bank_layout())
    sets : Out(set_layout())
    """

    host: In(BanksSignature())
    load: In(1)
    word: In(program_word_layout())
    current: In(bank_state_layout())
    idle: In(bank_state_layout())
    bank: Out(1)
    status: Out(bank_layout())
    sets: Out(set_layout())

    def elaborate(self, platform):
        m = Module()
        edit, run = self.host.edit, self.host.run
        header = Signal(program_header_layout(banks=2))
        begins = Signal()  # the header at the input starts a new program in the idle bank
        for_idle = Signal()  # words are for the idle bank
        counted = Signal()
        known = Signal()  # there is a digest
        digest = Signal(32)  # complement of the CRC register
        following = Signal(16)  # number of the set that follows the latest run
        due = Signal(16)  # number of the set of the waiting edit
        turns = Signal()
        chosen = Signal(bank_state_layout())  # state of the bank used by the run

        m.d.comb += [
            header.eq(self.word.data),
            begins.eq(begins_bank(header)),
            counted.eq(self.load & Mux(self.word.first, header.idle, for_idle)),
            self.status.bank.eq(self.bank),
            turns.eq(self.status.pending & (run.first == due)),
            chosen.eq(Mux(turns, self.idle.as_value(), self.current.as_value())),
            self.host.loaded.eq(chosen.loaded & (chosen.model == run.model)),
        ]
        with m.If(counted):
            before = Mux(self.word.first & begins, 0, digest)
            m.d.sync += digest.eq(~crc_after(~before ^ self.word.data))
        with m.If(self.load & self.word.first):
            m.d.sync += for_idle.eq(header.idle)
            with m.If(header.idle):
                m.d.sync += self.status.pending.eq(0)
                with m.If(begins):
                    m.d.sync += known.eq(1)

        with m.If(edit.number <= self.sets.latest):
            m.d.comb += self.host.verdict.eq(Status.OLD_EDIT)
        with m.Elif(edit.set != following):
            m.d.comb += self.host.verdict.eq(Status.WRONG_SET)
        with m.Elif(~known | ~self.idle.loaded | (edit.digest != digest)):
            m.d.comb += self.host.verdict.eq(Status.WRONG_PROGRAM)
        with m.Elif(self.host.ask):
            m.d.sync += [self.status.pending.eq(1), due.eq(edit.set), self.sets.latest.eq(edit.number)]

        with m.If(self.host.turn):
            m.d.sync += [self.sets.set.eq(run.first), following.eq(run.first + run.passes)]
            with m.If(turns):
                m.d.sync += [
                    self.bank.eq(~self.bank), self.status.pending.eq(0), self.status.number.eq(self.sets.latest),
                    known.eq(0),
                ]
        return m


def banks_members():
    """Members of a command queue with two program banks.

    banks : In(BanksSignature())
        ``turn`` must be low during a run.
    program_bank : Out(bank_layout())
    program_set : Out(set_layout())
    """
    return {"banks": In(BanksSignature()), "program_bank": Out(bank_layout()), "program_set": Out(set_layout())}


def connect_banks(m, queue, programs):
    """Create the bank selection for a command queue that has :func:`banks_members`, and connect it to the program
    memory."""
    m.submodules.banks = banks = ProgramBanks()
    wiring.connect(m, port=wiring.flipped(queue.banks), banks=banks.host)
    m.d.comb += [
        banks.load.eq(queue.program.valid),
        banks.word.eq(queue.program.payload),
        banks.current.model.eq(programs.model),
        banks.current.loaded.eq(programs.lengths.as_value().any()),
        banks.idle.eq(programs.idle),
        programs.bank.eq(banks.bank),
        queue.program_bank.eq(banks.status),
        queue.program_set.eq(banks.sets),
    ]
