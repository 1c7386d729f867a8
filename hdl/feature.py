"""Description of a feature: its additions to a node, each requested where the core provides for it."""

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

    A description imports gateware only on request: a configuration is made, checked and printed without any.

    Members
    -------
    requires : tuple of str
        Names of the features that this one needs. A node with this feature has them too.
    couplings : tuple of Coupling
        Incompatible values of its sections.
    resets : mapping of str to int
        Reset values of registers, by name, that differ from the table.
    """

    requires: tuple[str, ...] = ()
    couplings: "tuple[Coupling, ...]" = ()
    resets: Mapping[str, int] = {}

    def node(self) -> Callable[[Any], Any] | None:
        """Class of the node, instead of :class:`~hdl.node.Node`, for a configuration of its own."""
        return None

    def lacks(self, config: Any) -> Iterable[str]:
        """Names of registers that a node lacks although it has the feature."""
        return ()

    def codecs(self) -> "Mapping[str, Codec]":
        """Codecs of its formats for the ring, by name."""
        return {}

    def operands(self) -> Mapping[str, Any]:
        """Formats for operands of products, by name."""
        return {}

    def engines(self, config: Any) -> "Iterable[EngineDescription]":
        """Engines that it adds to a node."""
        return ()

    def around(self, config: Any) -> "NodeExtension | None":
        """Additions to a node around the engines."""
        return None

    def parts(self, config: Any) -> "Iterable[PartDescription]":
        """Parts that it adds to the datapath of a node."""
        return ()

    def pace(self, config: Any) -> "Pace | None":
        """Pace of the links of a node."""
        return None

    def control_units(self, config: Any) -> Iterable[Any]:
        """Units that take and send control words: each a :class:`~hdl.features.replay.control_words.ControlUnit`."""
        return ()

    def collective(self, config: Any) -> "CollectiveExtension | None":
        """Additions to the collective engine of a node."""
        return None


def features_of(config: Any) -> tuple[Feature, ...]:
    """Descriptions of the features of a configuration, in the order of the registry."""
    return tuple(feature(name) for name in config.feature_names)


def objects_of(config: Any, method: str) -> tuple[Any, ...]:
    """Objects that the features of a configuration return from a method, without None."""
    results = (getattr(feature, method)(config) for feature in features_of(config))
    return tuple(result for result in results if result is not None)
