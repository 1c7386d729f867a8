"""Extension of the collective engine for links with time slots."""

from amaranth.hdl import Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import place_layout
from hdl.control.source import Setting, Status
from hdl.features.slots.access import MESSAGES, messages_signature
from hdl.features.slots.job_link import JobLink
from hdl.features.slots.link import SlotLink, state_layout, test_layout
from hdl.ring.extension import CollectiveExtension
from hdl.streams.stream import connect_stream

__all__ = ["SlotsExtension"]

_TIME = ("time", "time_status", "superframes")


class SlotsExtension(CollectiveExtension):
    """Collective extension for link ends with slots, TIME, the node's position on the ring, and messages."""

    inputs = {"slot_position": Setting("slot_position"), "time_test": Setting("time_test")}

    @property
    def link(self):
        return JobLink if self._config.link.jobs > 1 else SlotLink

    @property
    def outputs(self):
        messages = {MESSAGES: "messages"} if self._config.link.messages else {}
        return {**{Status(name): name for name in _TIME}, **messages}

    def members(self):
        return {
            # Position on the ring, test settings and state of TIME, and number of superframes.
            "slot_position": In(place_layout()), "time_test": In(test_layout()), "time": Out(32),
            "time_status": Out(state_layout()), "superframes": Out(16),
            # Messages from and to rank 0's host.
            **({"messages": Out(messages_signature())} if self._config.link.messages else {}),
        }

    def make(self, m, units):
        link, engine, words = units.link, units.engine, units.words
        m.d.comb += [
            link.place.eq(engine.slot_position), link.test.eq(engine.time_test), engine.time.eq(link.now),
            engine.time_status.eq(link.state), engine.superframes.eq(link.superframes),
        ]
        for name in ("clock_words", "record_words", *(["place_words"] if self._config.link.messages else [])):
            wiring.connect(m, words=getattr(words, name), link=getattr(link, name))
        if self._config.link.messages:
            messages = engine.messages
            connect_stream(m, messages.i, link.message_i)
            m.d.comb += [messages.word.eq(link.message), messages.heard.eq(link.heard),
                         messages.rank.eq(link.rank), messages.forget.eq(link.forget)]
            began = Signal()
            m.d.sync += began.eq(engine.link_reset)
            # This reset must be short: a message ends the link reset, and must not be blocked by words waiting here.
            units.words_reset = engine.link_reset & ~began
        if self._config.link.jobs > 1:
            units.words_reset = engine.slot_position.size == 0
