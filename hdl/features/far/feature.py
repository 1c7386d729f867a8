"""A port to a memory that is larger and slower than the node's memories; see docs/far.md."""

from hdl.feature import Feature

__all__ = ["FEATURE", "FarFeature"]


class FarFeature(Feature):
    """Feature that adds a far memory, where a compute node stores activations until it needs them again."""

    def engines(self, config):
        from hdl.features.far import description
        return () if config.compute is None else (description.describe(config),)

    def around(self, config):
        from hdl.features.far.node import FarNode

        return FarNode(config)


FEATURE = FarFeature()
