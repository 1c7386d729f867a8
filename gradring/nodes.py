"""Node configuration by section, for gradring.open_session and gradring.simulate's ``node`` argument.

The sections that belong to features are imported on first use.
"""

import itertools
from typing import Any

from hdl.config import Credits, Memories, NodeConfig, Optimizer, Peer, RootReduce, SingleRing, Weights
from hdl.registry import FEATURES, section

_OF_FEATURES = tuple(sorted(itertools.chain.from_iterable(
    names for entry in FEATURES.values() for names in entry.sections.values())))

__all__ = ["Credits", "Memories", "NodeConfig", "Optimizer", "Peer", "RootReduce", "SingleRing", "Weights",
           *_OF_FEATURES]


def __getattr__(name: str) -> Any:
    if name not in _OF_FEATURES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return section(name)


def __dir__() -> list[str]:
    return sorted(__all__)
