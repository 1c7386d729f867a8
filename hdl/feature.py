"""Description of a feature: what it adds to a node, each part asked for where the core has a place for it."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hdl.registry import feature

if TYPE_CHECKING:
    from hdl.compression.codec import Codec
    from hdl.config.coupling import Coupling
    from hdl.control.engine import EngineDescription
    from hdl.node_extension import NodeExtension
    from hdl.ring.extension import CollectiveExtension
    from hdl.ring.link_ends import Pace
    from hdl.ring.parts.part import PartDescription

__all__ = ["Feature", "features_of", "objects_of"]


class Feature:
    """Base of the descriptions of features; by default a feature adds nothing.

    A description imports gateware only when it is asked for it: a configuration is made, checked and printed without
    any.

    Members
    -------
    requires : tuple of str
        Names of the features that must be there too. A node with this feature has these.
    couplings : tuple of Coupling
        Values of its sections that others do not go with.
    resets : mapping of str to int
        Reset values of registers, by name, that differ from the table.
    """

    requires: tuple[str, ...] = ()
    couplings: "tuple[Coupling, ...]" = ()
    resets: Mapping[str, int] = {}

    def node(self) -> Callable[[Any], Any] | None:
        """Class of the node that a configuration of its own has in place of :class:`~hdl.node.Node`."""
        return None

    def lacks(self, config: Any) -> Iterable[str]:
        """Names of registers that a node lacks although it has the feature."""
        return ()

    def codecs(self) -> "Mapping[str, Codec]":
        """Codecs of its formats for the ring, by name."""
        return {}

    def operands(self) -> Mapping[str, Any]:
        """Its formats for operands of products, by name."""
        return {}

    def engines(self, config: Any) -> "Iterable[EngineDescription]":
        """Engines that a node has for it."""
        return ()

    def around(self, config: Any) -> "NodeExtension | None":
        """What a node has for it around the engines."""
        return None

    def parts(self, config: Any) -> "Iterable[PartDescription]":
        """Parts of the datapath of a node."""
        return ()

    def pace(self, config: Any) -> "Pace | None":
        """Pace of the links of a node."""
        return None

    def control_units(self, config: Any) -> Iterable[Any]:
        """Units that take and send control words: each a :class:`~hdl.features.replay.control_words.ControlUnit`."""
        return ()

    def collective(self, config: Any) -> "CollectiveExtension | None":
        """What the collective engine of a node has for it."""
        return None


def features_of(config: Any) -> tuple[Feature, ...]:
    """Descriptions of the features of a configuration, in the order of the registry."""
    return tuple(feature(name) for name in config.feature_names)


def objects_of(config: Any, method: str) -> tuple[Any, ...]:
    """Objects that the features of a configuration return from a method, without the features that return None."""
    results = (getattr(feature, method)(config) for feature in features_of(config))
    return tuple(result for result in results if result is not None)
