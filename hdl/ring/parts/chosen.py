"""The parts of a node's datapath, by its configuration: the one list that a new part is entered in."""

from hdl.ring.parts import (
    coded_weights,
    compressed_sum,
    decoded_sum,
    fetch,
    landing,
    masters,
    raw_weights,
    residual,
    update,
    weight_transfer,
)
from hdl.ring.parts.part import check_parts

__all__ = ["parts"]

#: Makers of descriptions, in the order of their ports at each memory.
_DESCRIPTIONS = (update.describe, compressed_sum.describe, decoded_sum.describe, residual.describe,
                 raw_weights.describe, masters.describe, weight_transfer.describe, coded_weights.describe,
                 fetch.describe)


def parts(config):
    """Descriptions of the parts that the datapath of a node of this configuration has."""
    described = (describe(config) for describe in _DESCRIPTIONS)
    others = tuple(part for part in described if part is not None)
    chosen = landing.describe(config, others), *others
    check_parts(chosen)
    return chosen
