"""Extensions of the collective engine: additions of a feature, one object for each feature of a node.

:class:`~hdl.ring.collective.CollectiveEngine` calls each extension in turn, in the order of the registry of features.
An extension overrides the methods that it needs, and by default adds nothing. For example, one that counts the idle
cycles of the ring::

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
    """Units and signals of a collective engine, for extensions during its elaboration."""

    #: The engine itself, for its ports.
    engine: Any
    control: Any
    link: Any
    packetizer: Any
    depacketizer: Any
    datapath: Any
    #: The command taken last, and its setup, in registers.
    command: Any
    setup: Any
    #: Header of an ABORT.
    abort_header: Any
    #: Whether the offered command sums along a chain of nodes.
    chained: Any = 0
    #: Units of control words, in a node with them: the extension of replay makes them.
    words: Any = None
    #: Whether these must restart; and whether links must, with a new setting.
    words_reset: Any
    links_reset: Any = 0


class CollectiveExtension:
    """Base of the extensions of a collective engine.

    Parameters
    ----------
    config : Configuration

    Members
    -------
    link : type, optional
        Class of the ends of links instead of :class:`~hdl.ring.link_ends.LinkEnds`; the first extension with a class
        counts.
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
        """Descriptions of operations of the engine."""
        return ()

    def immediate(self) -> tuple[int, ...]:
        """Codes of operations without anything to run."""
        return ()

    def members(self) -> dict[str, Any]:
        """Ports of the engine."""
        return {}

    def counts(self) -> dict[str, int]:
        """Widths of increments of counters in a cycle, by the names of the registers."""
        return {}

    def make(self, m: Any, units: CollectiveUnits) -> Any:
        """Make units, and return a signal that another node has reported to be working, or None."""
        return None

    def take(self, m: Any, units: CollectiveUnits, command: Any) -> None:
        """Add to the setup of a command when it is taken; the statements are executed under that condition."""

    def connect(self, m: Any, units: CollectiveUnits) -> None:
        """Connect ports and units."""


def extensions(config: Any) -> tuple[CollectiveExtension, ...]:
    """Extensions of the collective engine of a node, in the order of the registry of features."""
    return objects_of(config, "collective")


def link_class(config: Any) -> Any:
    """Class of the ends of a node's links."""
    return next((extension.link for extension in extensions(config) if extension.link is not None), LinkEnds)
