"""Extension of the collective engine for replay links and for the control words that nodes exchange."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.control.remote_after import SIGNALS, signals_signature
from hdl.control.source import Status
from hdl.features.replay.control_words import ControlWords
from hdl.features.replay.link_ends import ReplayEnds, repairs_layout
from hdl.ring.extension import CollectiveExtension
from hdl.streams.stream import connect_stream

__all__ = ["ReplayExtension"]


class ReplayExtension(CollectiveExtension):
    """Replay link ends, repair counters and, in a node with two queues, control words.

    A node with one queue drops incoming control words.
    """

    @property
    def link(self):
        return None if self._config.link.slots else ReplayEnds

    @property
    def outputs(self):
        return {Status("link_delay"): "link_delay", **({SIGNALS: "signals"} if self._config.has_signals else {})}

    def members(self):
        return {"signals": In(signals_signature(self._config.queues))} if self._config.has_signals else {}

    def counts(self):
        return dict(repairs_layout(self._config.topology.ports).members)

    def make(self, m, units):
        link, engine = units.link, units.engine
        if not self._config.has_signals:
            m.d.comb += link.control_o.ready.eq(1)
            return None
        m.submodules.control_words = units.words = words = ControlWords(config=self._config)
        connect_stream(m, link.control_o, words.i)
        connect_stream(m, words.o, link.control_i)
        wiring.connect(m, words=words.signals, queues=wiring.flipped(engine.signals))
        return engine.signals.alive

    def connect(self, m, units):
        repairs = units.link.repairs
        m.d.comb += [units.engine.count[name].eq(repairs[name]) for name in repairs.shape().members]
        if units.words is not None:
            reset = units.words_reset
            m.d.comb += units.words.reset_link.eq(reset if self._config.link.jobs > 1 else reset | units.links_reset)
