"""Transmitter for a link that carries only control words, with retransmission."""

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.replay.check import check_of
from hdl.features.replay.control_word import ControlType, restart_layout
from hdl.features.replay.line import Listener, message_layout
from hdl.features.replay.signature import ReplayLinkSignature
from hdl.features.replay.transmitter import ENDS, PATIENCE, START_AGAIN, START_AGAIN_LATER
from hdl.features.replay.window import NUMBER_BITS, Window

__all__ = ["ControlTransmitter"]


class ControlTransmitter(wiring.Component):
    """Send control words, and retransmit them from the word that the receiver requests.

    The transmitter behaves exactly like a :class:`~hdl.features.replay.transmitter.ReplayTransmitter` with one port
    and no packets, but needs fewer LUTs: it counts no credits, stores words without their CRCs (which are computed
    from the wires), and resets its timer to 0 with each restart of the link.

    Latency is :attr:`latency` cycles from a word at ``control`` to the wires, throughput one word per cycle. All
    outputs depend on registers and ``reset_link``; all wires except the check are registers.

    Parameters
    ----------
    window : int
        Maximum number of unacknowledged words; a power of two minus 1, from 3 to 255. One more word can wait.

    Members
    -------
    control, ring_o, reset_link, settled, fresh, repeated, restarted, delay, enable, round
        As in :class:`~hdl.features.replay.transmitter.ReplayTransmitter`, except that all wires are 0 while there is
        no word, and the check depends combinationally on the register of the other wires.
    hush : In(1)
        The wires must be idle in the next cycle: a word that would be sent then is lost.
    """

    latency = 3

    def __init__(self, *, window):
        if window not in tuple((1 << bits) - 1 for bits in range(2, 9)):
            raise ValueError(f"Window must be 3, 7, 15, 31, 63, 127 or 255, not {window!r}")
        self._window = window
        super().__init__({
            "control": In(stream.Signature(unsigned(32))), "ring_o": Out(ReplayLinkSignature()), "reset_link": In(1),
            "settled": Out(1), "fresh": Out(1), "repeated": Out(1), "restarted": Out(1), "delay": Out(NUMBER_BITS),
            "enable": In(1, init=1), "hush": In(1), "round": Out(NUMBER_BITS + 1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.window = window = Window(rows=self._window + 1, window=self._window)
        m.submodules.listener = listener = Listener()
        id, next_id = Signal(2), Signal(2)
        confirmed, holds = Signal(), Signal()  # receiver has seen the last restart; words wait for this
        restart_due, again, started = Signal(init=1), Signal(), Signal()
        # Cycles since the receiver last reported progress, and the limit of this count: the round trip plus PATIENCE.
        timer, limit = Signal(NUMBER_BITS + 1), Signal(NUMBER_BITS + 1, init=PATIENCE)
        said = Signal(message_layout())
        latest, demanded, confirms, overdue = Signal(), Signal(), Signal(), Signal()
        self._send(m, window, started, id, restart_due, holds)
        m.d.comb += [
            next_id.eq(id),
            listener.line.eq(self.ring_o.line),
            listener.lost.eq(listener.complete & ~started & ~(listener.good & (listener.message.id == id))),
            window.complete.eq(listener.complete & listener.good),
            window.expect.eq(listener.message.expect),
            window.count.eq(started),
            latest.eq(window.judged & (said.id == id)),
            demanded.eq(latest & said.recover),
            confirms.eq(latest & ~said.recover & ~confirmed),
            overdue.eq(timer == limit),
            self.settled.eq(window.settled),
            self.round.eq(limit - (PATIENCE + 1)), self.delay.eq((limit - PATIENCE)[1:NUMBER_BITS + 1]),
        ]
        m.d.sync += [said.eq(listener.message), restart_due.eq(0), timer.eq(timer + 1)]
        with m.If(confirms):
            m.d.sync += [confirmed.eq(1), holds.eq(0)]

        # Any of these three events resets the timer to 0.
        first, goes_back, news = Signal(), Signal(), Signal()
        m.d.comb += [
            first.eq(~started & listener.complete & ~listener.lost),
            goes_back.eq(started & (demanded | overdue)),
            news.eq(started & ((window.judged & window.differs) | confirms | (~window.flying & confirmed))),
            window.demanded.eq(started & demanded), window.goes_back.eq(goes_back),
        ]
        with m.If(first | (~started & restart_due) | goes_back | news):
            m.d.sync += timer.eq(0)
        with m.If(~started & listener.marked):
            m.d.sync += limit.eq(timer + (1 + PATIENCE - ENDS))
        with m.If(first):
            m.d.sync += [started.eq(1), confirmed.eq(1)]
        with m.If(~started):
            with m.If(restart_due):
                m.d.comb += next_id.eq(id + 1)
            with m.Elif(~first & (timer == Mux(again, START_AGAIN_LATER + ENDS, START_AGAIN + ENDS))):
                m.d.sync += [restart_due.eq(1), again.eq(1)]
        with m.Elif(goes_back):
            # Restarts with no words between them share a number, so that one still in flight is not mistaken for a
            # later one.
            m.d.comb += next_id.eq(id + (demanded | ~holds))
            m.d.sync += [restart_due.eq(1), confirmed.eq(0), holds.eq(~demanded)]

        # A link reset does not reset the restart number, so a START sent before the reset, which may still be in
        # flight, has a different number than the one sent after it.
        kept = Module()
        kept.submodules.link = ResetInserter(self.reset_link)(m)
        with kept.If(~self.reset_link):
            kept.d.sync += id.eq(next_id)
        return kept

    def _send(self, m, window, started, id, restart_due, holds):
        """Accept words into the memory, and send them through the memory's output latch and the wires' register."""
        m.submodules.memory = memory = Memory(
            shape=32, depth=self._window + 1, init=[], attrs={"no_rw_check": 1, "ram_style": "block"})
        write, read = memory.write_port(), memory.read_port()
        fetch, fetched, is_restart, is_new = (Signal(name=name) for name in (
            "fetch", "fetched", "is_restart", "is_new"))
        number, restart, named = Signal(NUMBER_BITS), Signal(restart_layout()), Signal(8)
        out = self.ring_o
        m.d.comb += [
            window.enters.eq(window.room & self.control.valid),
            self.control.ready.eq(window.room | self.reset_link),
            write.addr.eq(window.write), write.en.eq(window.room),  # a free row may be written with any data
            write.data.eq(self.control.payload),
            restart.type.eq(Mux(started, ControlType.RESTART, ControlType.START)),
            restart.number.eq(number), restart.id.eq(id),
            fetch.eq(started & ~restart_due & ~holds & window.pending & self.enable),
            window.fetches.eq(fetch), read.addr.eq(window.send), read.en.eq(fetch),
            out.check.eq(check_of(Cat(out.data, out.last, out.kind)) ^ named),
        ]
        m.d.sync += [
            fetched.eq(fetch | restart_due), is_restart.eq(restart_due), is_new.eq(~window.repeats),
            number.eq(window.send),
            self.fresh.eq(fetched & is_new & ~is_restart),
            self.repeated.eq(fetched & ~is_new & ~is_restart),
            self.restarted.eq(fetched & is_restart & started),
            out.valid.eq(fetched), out.kind.eq(fetched), out.last.eq(is_restart),
            out.data.eq(Mux(is_restart, restart, read.data)), named.eq(number),
        ]
        with m.If(is_restart):
            m.d.sync += [out.data[restart_layout()["zeros"].offset:].eq(0), named.eq(0)]
        # Other units use these wires while no word leaves this unit, so its outputs must then be zero.
        with m.If(~fetched | self.hush):
            m.d.sync += [out.valid.eq(0), out.kind.eq(0), out.last.eq(0), out.data.eq(0)]
