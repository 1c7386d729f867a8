"""Configurations of nodes that sum integers, for simulated rings."""

from tests.host import rings

#: Keyed by format, as far as this copy has their features. Nodes of ``sum16`` can sum several gradients each.
CONFIGS = {name: rings.CONFIGS[ring] for name, ring in (("sum32", "sums"), ("sum16", "microbatches"))
           if ring in list(rings.CONFIGS)}
