# amaranth: UnusedElaboratable=no
# Units are created only to read their ports.
"""Units of a node that receive and send control words, and their connections to the command queues."""

import dataclasses
from collections.abc import Callable
from typing import Any

from amaranth.hdl import Module, ResetInserter, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.remote_after import signals_signature
from hdl.feature import features_of
from hdl.features.replay.control_hub import ControlHub
from hdl.features.replay.control_word import ControlType
from hdl.features.replay.signals import SignalRelay

__all__ = ["ControlUnit", "ControlWords", "units"]


@dataclasses.dataclass(frozen=True)
class ControlUnit:
    """Description of a unit that receives and sends control words.

    Parameters
    ----------
    name : str
        Name of the submodule.
    takes : tuple of ControlType
        Message types that the unit receives.
    make : callable
        Creates the component from a :class:`~hdl.config.NodeConfig`. The component has ``i`` and ``o``, streams of
        :func:`~hdl.features.replay.control_word.message_layout`, or of unsigned(32) if its messages have one word
        each. Further ports with the name of a member of :func:`~hdl.control.remote_after.signals_signature`, or named
        ``reset_link``, are connected to the signal of that name.
    interface : str
        Name of the unit's interface to another engine or to the link ends; empty if there is none.
    """

    name: str
    takes: tuple[ControlType, ...]
    make: Callable[[Any], Any]
    interface: str = ""

    def member(self, config):
        """The unit's interface, as a member of :class:`ControlWords`."""
        return {self.interface: self.make(config).signature.members[self.interface]}


def units(config):
    """Return the units of a node with this configuration, in order of priority."""
    return tuple(unit for feature in features_of(config) for unit in feature.control_units(config))


class ControlWords(wiring.Component):
    """Connect the control-word units with the link ends and the command queues.

    A forwarded SIGNAL takes :attr:`latency` cycles from ``i`` to ``o``.

    Parameters
    ----------
    config : NodeConfig
        Configuration of a node that :attr:`~hdl.config.NodeConfig.has_signals`.

    Members
    -------
    i : In(stream of unsigned(32))
        Control words from the predecessor.
    o : Out(stream of unsigned(32))
        Control words for the successor.
    signals : In(signals_signature(queues))
    rounds : In(quorum_signature()), in a node with rounds
    clock_words, record_words : In(unit_words_signature()), in a node with slots
    place_words : In(unit_words_signature()), in a node with messages
    reset_link : In(1)
        Level: discard all state; in a node with messages, only the state of these units, while control words
        continue to pass.
    tenant : In(2), in a node with tenants
        Tenant to which the control words belong; changes only while ``reset_link`` is held.
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
            **{name: member for unit in units(config) if unit.interface
               for name, member in unit.member(config).items()},
            "reset_link": In(1),
            **({"tenant": In(2)} if config.has("tenants") else {}),
        })

    def elaborate(self, platform):
        m = Module()
        entries = units(self._config)
        m.submodules.hub = hub = ControlHub(
            takes=[unit.takes for unit in entries], tenants=self._config.has("tenants"))
        if self._config.has("tenants"):
            m.d.comb += hub.tenant.eq(self.tenant)
        m.d.comb += [
            hub.i.valid.eq(self.i.valid), hub.i.payload.eq(self.i.payload), self.i.ready.eq(hub.i.ready),
            self.o.valid.eq(hub.o.valid), self.o.payload.eq(hub.o.payload), hub.o.ready.eq(self.o.ready),
            hub.reset_link.eq(0 if self._config.link.messages else self.reset_link),
        ]
        for number, entry in enumerate(entries):
            unit = entry.make(self._config)
            # A reset drops waiting words, which were meant for the links before the reset.
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
        """Connect the streams of a unit with the hub."""
        whole = "last" in getattr(unit.o.payload.shape(), "members", ())
        m.d.comb += [
            unit.i.valid.eq(take.valid), take.ready.eq(unit.i.ready),
            give.valid.eq(unit.o.valid), unit.o.ready.eq(give.ready),
            unit.i.payload.eq(take.payload if whole else take.payload.data),
            *([give.payload.eq(unit.o.payload)] if whole else [
                give.payload.data.eq(unit.o.payload), give.payload.first.eq(1), give.payload.last.eq(1)]),
        ]
