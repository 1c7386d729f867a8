"""Description of a feature: its additions to a node, which the core requests where needed."""

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
    """Base class of feature descriptions, which by default add nothing.

    A description imports gateware only on request, so configurations can be created, checked and printed without it.

    Members
    -------
    requires : tuple of str
        Names of the features that this feature needs. A node with this feature also has these.
    couplings : tuple of Coupling
        Incompatible values of the feature's sections.
    resets : mapping of str to int
        Register reset values that differ from the register table, keyed by name.
    """

    requires: tuple[str, ...] = ()
    couplings: "tuple[Coupling, ...]" = ()
    resets: Mapping[str, int] = {}

    def node(self) -> Callable[[Any], Any] | None:
        """Class of the node if the feature has its own configuration, replacing :class:`~hdl.node.Node`."""
        return None

    def lacks(self, config: Any) -> Iterable[str]:
        """Names of the feature's registers that are absent from a node of this configuration."""
        return ()

    def codecs(self) -> "Mapping[str, Codec]":
        """Ring codecs of the feature's formats, keyed by name."""
        return {}

    def operands(self) -> Mapping[str, Any]:
        """Operand formats for products, by name."""
        return {}

    def engines(self, config: Any) -> "Iterable[EngineDescription]":
        """Engines that the feature adds to a node."""
        return ()

    def around(self, config: Any) -> "NodeExtension | None":
        """Additions to a node outside its engines."""
        return None

    def parts(self, config: Any) -> "Iterable[PartDescription]":
        """Parts that the feature adds to a node's datapath."""
        return ()

    def pace(self, config: Any) -> "Pace | None":
        """Pace of the links of a node, if the feature limits it; otherwise None."""
        return None

    def control_units(self, config: Any) -> Iterable[Any]:
        """Control-word units, each a :class:`~hdl.features.replay.control_words.ControlUnit`."""
        return ()

    def collective(self, config: Any) -> "CollectiveExtension | None":
        """Extension of the node's collective engine, or None."""
        return None


def features_of(config: Any) -> tuple[Feature, ...]:
    """Descriptions of a configuration's features, in registry order."""
    return tuple(feature(name) for name in config.feature_names)


def objects_of(config: Any, method: str) -> tuple[Any, ...]:
    """Results of a method for all features of a configuration, omitting None."""
    results = (getattr(feature, method)(config) for feature in features_of(config))
    return tuple(result for result in results if result is not None)
