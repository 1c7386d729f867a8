"""Golden nodes that sum 16-bit integers, for tests without gateware."""

from hdl.features.int16.feature import Int16Config, Int16Memories
from tests.host.golden import GoldenRing


def configuration(*, gradient=1024, weight=2048, sparsify=True):
    """Configuration with all operations, and with memory for errors and for a digits model without hidden layers."""
    return Int16Config(memories=Int16Memories(gradient=gradient, weight=weight), sparsify=sparsify)


def golden_ring(*, fault=lambda ring: None, **options):
    return GoldenRing(1, config=configuration(**options), fault=fault)
