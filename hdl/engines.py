"""List of the engines of a node, by its configuration: a new engine is entered here."""

from hdl.compute import description as compute
from hdl.control import latched_settings
from hdl.control.engine import operations_of
from hdl.far import description as far
from hdl.int16_node import description as int16_node
from hdl.masking import description as masking
from hdl.quantization import description as quantization
from hdl.ring import description as ring
from hdl.rounds import description as rounds

__all__ = ["engines", "operations"]

#: Makers of descriptions for a full node, in order of priority at the memories. The first carries out collectives.
_DESCRIPTIONS = (ring.describe, rounds.describe, masking.describe, quantization.describe, compute.describe_stand_in,
                 compute.describe_layers, far.describe, latched_settings.describe)


def engines(config):
    """Descriptions of the engines that a node of this configuration has."""
    if config.is_int16:
        return int16_node.describe(config)
    described = (describe(config) for describe in _DESCRIPTIONS)
    return tuple(engine for engine in described if engine is not None)


def operations(config):
    """Descriptions of the operations of these engines, in order of their codes."""
    return operations_of(engines(config))
