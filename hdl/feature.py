"""Description of a feature: its additions to a node, which the core requests where it needs them."""

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
    """Base of all descriptions of features; by default a feature adds nothing.

    A description imports gateware only on request: a configuration can be created, checked and printed without it.

    Members
    -------
    requires : tuple of str
        Names of the features that this feature needs. A node with this feature has them as well.
    couplings : tuple of Coupling
        Incompatible values of the feature's sections.
    resets : mapping of str to int
        Reset values of registers, by name, that differ from the register table.
    """

    requires: tuple[str, ...] = ()
    couplings: "tuple[Coupling, ...]" = ()
    resets: Mapping[str, int] = {}

    def node(self) -> Callable[[Any], Any] | None:
        """Class of the node, instead of :class:`~hdl.node.Node`, if the feature has its own configuration."""
        return None

    def lacks(self, config: Any) -> Iterable[str]:
        """Names of the feature's registers that a node of this configuration lacks."""
        return ()

    def codecs(self) -> "Mapping[str, Codec]":
        """Codecs of the feature's formats for the ring, by name."""
        return {}

    def operands(self) -> Mapping[str, Any]:
        """Formats of operands of products, by name."""
        return {}

    def engines(self, config: Any) -> "Iterable[EngineDescription]":
        """Engines that the feature adds to a node."""
        return ()

    def around(self, config: Any) -> "NodeExtension | None":
        """Additions to a node outside its engines."""
        return None

    def parts(self, config: Any) -> "Iterable[PartDescription]":
        """Parts that the feature adds to the datapath of a node."""
        return ()

    def pace(self, config: Any) -> "Pace | None":
        """Pace of the links of a node."""
        return None

    def control_units(self, config: Any) -> Iterable[Any]:
        """Units for control words, each a :class:`~hdl.features.replay.control_words.ControlUnit`."""
        return ()

    def collective(self, config: Any) -> "CollectiveExtension | None":
        """Extension of the node's collective engine, or None if the feature does not extend it."""
        return None


def features_of(config: Any) -> tuple[Feature, ...]:
    """Descriptions of the features of a configuration, in the order of the registry."""
    return tuple(feature(name) for name in config.feature_names)


def objects_of(config: Any, method: str) -> tuple[Any, ...]:
    """Objects that the features of a configuration return from a method, except None."""
    results = (getattr(feature, method)(config) for feature in features_of(config))
    return tuple(result for result in results if result is not None)
