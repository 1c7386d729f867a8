"""All engines of a node: the core engines and the engines of its features."""

from hdl.control.engine import operations_of
from hdl.feature import features_of
from hdl.masking import description as masking
from hdl.ring import description as ring

__all__ = ["engines", "operations"]


def engines(config):
    """Descriptions of all engines of a node with this configuration, in order of priority."""
    core = (ring.describe(config), masking.describe(config)) if config.has_ring else ()
    described = [engine for engine in core if engine is not None]
    for feature in features_of(config):
        described.extend(feature.engines(config))
    return tuple(sorted(described, key=lambda engine: engine.priority))


def operations(config):
    """Descriptions of all operations of a node's engines, in order of operation code."""
    return operations_of(engines(config))
