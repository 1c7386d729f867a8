"""Configurations of nodes that sum integers, for tests on simulated rings."""

from tests.host import rings

#: Node configurations keyed by format, without formats that this copy of the tree lacks. Nodes with ``sum16`` can
#: sum several gradients each.
CONFIGS = {name: rings.CONFIGS[ring] for name, ring in (("sum32", "sums"), ("sum16", "microbatches"))
           if ring in list(rings.CONFIGS)}
