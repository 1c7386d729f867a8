"""Extensions of the collective engine, with which a node's features add units and ports; each feature has one object.

:class:`~hdl.ring.collective.CollectiveEngine` calls all extensions in the order of the feature registry. An extension
overrides the methods that it needs; the defaults add nothing. For example, this extension counts the idle cycles of
the ring::

    class IdleCount(CollectiveExtension):
        def counts(self):
            return {"ring_idle": 1}

        def connect(self, m, units):
            moves = units.link.sent.word | units.link.received.word.any()
            m.d.comb += units.engine.count.ring_idle.eq(units.control.busy & ~moves)
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hdl.control.source import Purpose, Source
from hdl.feature import objects_of
from hdl.ring.link_ends import LinkEnds

__all__ = ["CollectiveExtension", "CollectiveUnits", "extensions", "link_class"]


@dataclasses.dataclass(kw_only=True)
class CollectiveUnits:
    """Units and signals of a collective engine that extensions can use during its elaboration."""

    #: The engine itself, which gives access to its ports.
    engine: Any
    control: Any
    link: Any
    packetizer: Any
    depacketizer: Any
    datapath: Any
    #: The most recent command and its setup, from registers.
    command: Any
    setup: Any
    #: Header of the ABORT packets that the engine sends.
    abort_header: Any
    #: Whether the offered command adds gradients along a chain of nodes.
    chained: Any = 0
    #: Units for control words, created by the replay extension; None if the node has no control words.
    words: Any = None
    #: Whether the control word units must restart, and whether the links must restart with a new setting.
    words_reset: Any
    links_reset: Any = 0


class CollectiveExtension:
    """Base class of all extensions of a collective engine.

    Parameters
    ----------
    config : Configuration

    Members
    -------
    link : type, optional
        Class of the link ends, if not :class:`~hdl.ring.link_ends.LinkEnds`; the first extension with a class takes
        precedence.
    control : mapping
        Options of :class:`~hdl.ring.control.CollectiveControl`.
    inputs, outputs, joins : mapping
        Additions to the engine's :class:`~hdl.control.engine.EngineDescription`.
    """

    link: Any = None
    control: Mapping[str, bool] = {}
    inputs: Mapping[str, Source] = {}
    outputs: Mapping[Purpose, str] = {}
    joins: Mapping[str, str] = {}

    def __init__(self, config: Any) -> None:
        self._config = config

    def operations(self) -> tuple[Any, ...]:
        """Return descriptions of the operations that this extension adds to the engine."""
        return ()

    def immediate(self) -> tuple[int, ...]:
        """Return the codes of operations that end immediately because there is nothing to run."""
        return ()

    def members(self) -> dict[str, Any]:
        """Return the ports that this extension adds to the engine."""
        return {}

    def counts(self) -> dict[str, int]:
        """Return the increment widths in bits of additional counters, keyed by register name."""
        return {}

    def make(self, m: Any, units: CollectiveUnits) -> Any:
        """Create units; return None or a signal that is high when another node reports that it is working."""
        return None

    def take(self, m: Any, units: CollectiveUnits, command: Any) -> None:
        """Add assignments to a command's setup, which take effect when the command is accepted."""

    def connect(self, m: Any, units: CollectiveUnits) -> None:
        """Connect the ports and units that this extension has added."""


def extensions(config: Any) -> tuple[CollectiveExtension, ...]:
    """Return the extensions of a node's collective engine, in the order of the feature registry."""
    return objects_of(config, "collective")


def link_class(config: Any) -> Any:
    """Return the class of a node's link ends."""
    return next((extension.link for extension in extensions(config) if extension.link is not None), LinkEnds)
