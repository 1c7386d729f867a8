"""Control words of a node: the units that take and send them, and what they tell the queues of commands."""

import dataclasses
from collections.abc import Callable
from typing import Any

from amaranth.hdl import Module, ResetInserter, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.remote_after import signals_signature
from hdl.node_features import Tenants
from hdl.ring.replay.control_hub import ControlHub
from hdl.ring.replay.control_word import ControlType
from hdl.ring.replay.keepalive import KeepAlive
from hdl.ring.replay.round_relay import RoundRelay
from hdl.ring.replay.signals import SignalRelay
from hdl.ring.replay.unit_words import UnitWords, unit_words_signature
from hdl.rounds.layouts import rounds_signature

__all__ = ["UNITS", "ControlUnit", "ControlWords", "units"]


@dataclasses.dataclass(frozen=True)
class ControlUnit:
    """A unit that takes and sends control words.

    Parameters
    ----------
    name : str
        Name of the submodule.
    takes : tuple of ControlType
        Types of the messages that it is handed.
    make : callable
        Takes the :class:`~hdl.config.NodeConfig`, and makes the component. It has ``i`` and ``o``, streams of
        :func:`~hdl.ring.replay.control_word.message_layout`, or of unsigned(32) if its messages have one word each.
        Other ports that have the name of a member of :func:`~hdl.control.remote_after.signals_signature`, or are
        named ``reset_link``, are joined to it.
    interface : str
        Name of an interface that it has to another engine of the node, or nothing.
    present : callable
        Takes the configuration, and says whether the node has the unit.
    """

    name: str
    takes: tuple[ControlType, ...]
    make: Callable[[Any], Any]
    interface: str = ""
    present: Callable[[Any], bool] = lambda config: True


#: Units of a node; the first of them that has a message sends it first. A new one is entered here.
UNITS = (
    # Two jobs on a ring tell each other nothing.
    ControlUnit("relay", (ControlType.SIGNAL,), lambda config: SignalRelay(queues=config.queues),
                present=lambda config: config.link.jobs == 1),
    ControlUnit("keepalive", (ControlType.KEEPALIVE,), lambda config: KeepAlive(),
                present=lambda config: config.link.jobs == 1),
    # The gateware of slots is with the ends of links.
    ControlUnit("records", (ControlType.LAP, ControlType.RECORD), lambda config: UnitWords(name="record_words"),
                interface="record_words", present=lambda config: config.link.slots and config.link.jobs == 1),
    ControlUnit("rooms", (ControlType.COLLECT, ControlType.GRANT), lambda config: UnitWords(name="record_words"),
                interface="record_words", present=lambda config: config.link.jobs > 1),
    ControlUnit("clock", (ControlType.SYNC,), lambda config: UnitWords(name="clock_words"), interface="clock_words",
                present=lambda config: config.link.slots),
    ControlUnit("places", (ControlType.PLACE,), lambda config: UnitWords(name="place_words"), interface="place_words",
                present=lambda config: config.link.messages),
    ControlUnit("rounds", (ControlType.READY, ControlType.CLOSE), lambda config: RoundRelay(), interface="rounds",
                present=lambda config: config.has_quorum),
)


def units(config):
    """Units of a node of this configuration."""
    return tuple(unit for unit in UNITS if unit.present(config))


class ControlWords(wiring.Component):
    """Join the units that take and send control words to the ends of links and to the queues of commands.

    A SIGNAL that is handed on takes :attr:`latency` cycles from ``i`` to ``o``.

    Parameters
    ----------
    config : NodeConfig
        Of a node that :attr:`~hdl.config.NodeConfig.has_signals`.

    Members
    -------
    i : In(stream of unsigned(32))
        Control words of the predecessor.
    o : Out(stream of unsigned(32))
        Control words for the successor.
    signals : In(signals_signature(queues))
    rounds : In(rounds_signature()), in a node with rounds
    clock_words, record_words : In(unit_words_signature()), in a node with slots
    place_words : In(unit_words_signature()), in a node with messages
    reset_link : In(1)
        Level: forget everything; in a node with messages only what units here know, since other control words go on.
    tenant : In(2), in a node with tenants
        Tenant whose control words these are; changes only while ``reset_link`` is held.
    """

    latency = SignalRelay.latency + ControlHub.latency

    def __init__(self, *, config):
        if not config.has_signals:
            raise ValueError("Node with control words must have replay and two queues")
        self._config = config
        super().__init__({
            "i": In(stream.Signature(unsigned(32))),
            "o": Out(stream.Signature(unsigned(32))),
            "signals": In(signals_signature(config.queues)),
            **({"rounds": In(rounds_signature())} if config.has_quorum else {}),
            **(dict.fromkeys(("clock_words", "record_words"), In(unit_words_signature()))
               if config.link.slots else {}),
            **({"place_words": In(unit_words_signature())} if config.link.messages else {}),
            "reset_link": In(1),
            **({"tenant": In(2)} if config.has(Tenants) else {}),
        })

    def elaborate(self, platform):
        m = Module()
        entries = units(self._config)
        m.submodules.hub = hub = ControlHub(
            takes=[unit.takes for unit in entries], tenants=self._config.has(Tenants))
        if self._config.has(Tenants):
            m.d.comb += hub.tenant.eq(self.tenant)
        m.d.comb += [
            hub.i.valid.eq(self.i.valid), hub.i.payload.eq(self.i.payload), self.i.ready.eq(hub.i.ready),
            self.o.valid.eq(hub.o.valid), self.o.payload.eq(hub.o.payload), hub.o.ready.eq(self.o.ready),
            hub.reset_link.eq(0 if self._config.link.messages else self.reset_link),
        ]
        for number, entry in enumerate(entries):
            unit = entry.make(self._config)
            # What a unit has not sent by then is of other links.
            m.submodules[entry.name] = unit if "reset_link" in unit.signature.members else ResetInserter(
                self.reset_link)(unit)
            self._join(m, unit, hub.take[number], hub.give[number])
            for name in signals_signature(self._config.queues).members:
                if name not in unit.signature.members:
                    continue
                port, its = getattr(self.signals, name), getattr(unit, name)
                m.d.comb += its.eq(port) if unit.signature.members[name].flow == In else port.eq(its)
            if entry.interface:
                wiring.connect(m, node=wiring.flipped(getattr(self, entry.interface)),
                               unit=getattr(unit, entry.interface))
            if "reset_link" in unit.signature.members:
                m.d.comb += unit.reset_link.eq(self.reset_link)
        return m

    @staticmethod
    def _join(m, unit, take, give):
        """Join the streams of a unit and of the hub."""
        whole = "last" in getattr(unit.o.payload.shape(), "members", ())
        m.d.comb += [
            unit.i.valid.eq(take.valid), take.ready.eq(unit.i.ready),
            give.valid.eq(unit.o.valid), unit.o.ready.eq(give.ready),
            unit.i.payload.eq(take.payload if whole else take.payload.data),
            *([give.payload.eq(unit.o.payload)] if whole else [
                give.payload.data.eq(unit.o.payload), give.payload.first.eq(1), give.payload.last.eq(1)]),
        ]
