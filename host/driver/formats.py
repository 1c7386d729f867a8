"""Formats that all nodes of a ring have alike: elements, memory rows, segments and codecs."""

import operator
from collections.abc import Sequence
from typing import Any

from hdl.config import Configuration

__all__ = ["ALIKE", "Formats", "alike"]

ALIKE = ("element", "segment", "weights", "gradients", "link", "has_quorum", "queues", "role.root_reduce",
         "role.interleaved")
"""Sections and properties of a configuration that all nodes of a ring must have alike: those of packets, links,
master weights and programs."""


def alike(configs: Sequence[Configuration], name: str) -> Any:
    """Value of a parameter, which all nodes must have alike."""
    values = list(dict.fromkeys(map(operator.attrgetter(name), configs)))
    if len(values) > 1:
        raise ValueError(f"Nodes of a ring must have the same {name}, not {' and '.join(map(repr, values))}")
    return values[0]


class Formats:
    """Formats of elements, memory rows, segments and codecs.

    Parameters
    ----------
    configs : sequence of Configuration
        Each configuration of a node in the ring; they must agree on :data:`ALIKE`.
    """

    def __init__(self, configs: Sequence[Configuration]):
        for name in ALIKE:
            alike(configs, name)
        self._configs = configs
        self._config = configs[0]

    @property
    def segment(self) -> int:
        """Elements in a segment."""
        return int(self._config.segment)

    @property
    def lanes(self) -> int:
        """Elements in a memory row; a ``ValueError`` if nodes differ."""
        return int(alike(self._configs, "lanes"))

    @property
    def int16(self) -> bool:
        """Whether elements are 16-bit integers."""
        return bool(self._config.is_int16)

    @property
    def weight_codec(self) -> str:
        """Name of the codec that new weights go through in a fused update."""
        return str(self._config.weights.codec)

    @property
    def has_codebook(self) -> bool:
        """Whether the weight codec has centroids, which the host loads."""
        return bool(self._config.codebook_words)

    @property
    def gradient_codec(self) -> str:
        """Name of the codec that gradients and their sums go through."""
        return str(self._config.gradients)

    @property
    def has_master(self) -> bool:
        """Whether nodes keep master weights of their blocks, in addition to the weights that all compute with."""
        return bool(self._config.weights.has_master)

    @property
    def has_residual(self) -> bool:
        """Whether nodes keep the residual of the gradient codec."""
        return bool(self._config.has_residual)
