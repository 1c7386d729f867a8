"""Registry of datapath parts, which selects parts of the core and of features for a node's configuration."""

from hdl.feature import features_of
from hdl.ring.parts import (
    coded_weights,
    compressed_sum,
    decoded_sum,
    master_weights,
    raw_weights,
    residual,
    update,
    weight_transfer,
    write_back,
)
from hdl.ring.parts.part import check_parts

__all__ = ["parts"]

#: Functions that describe the core's parts, in the order of their ports at each memory.
_DESCRIPTIONS = (update.describe, compressed_sum.describe, decoded_sum.describe, residual.describe,
                 raw_weights.describe, master_weights.describe, weight_transfer.describe, coded_weights.describe)


def parts(config):
    """Return the descriptions of all datapath parts in a node with this configuration."""
    described = (describe(config) for describe in _DESCRIPTIONS)
    present = (*(part for part in described if part is not None),
               *(part for feature in features_of(config) for part in feature.parts(config)))
    result = write_back.describe(config, present), *present
    check_parts(result)
    return result
