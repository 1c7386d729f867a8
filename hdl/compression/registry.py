"""Codecs for weights and gradients on the ring, keyed by name.

Configurations, command lines and reports use the name; packets carry the code. Two codecs are part of the core; the
rest belong to features and are imported on first use: docs/compression/adding-a-format.md.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from hdl.compression.codec import Codec, FixedCodec
from hdl.compression.length import WORD
from hdl.compression.raw import Passage
from hdl.compression.zero_value.codec import ZeroValueCodec
from hdl.registry import codes, feature, feature_of_format, format_names

__all__ = ["CODECS", "FETCH_FORMATS", "GRADIENT_CODECS", "RAW", "WEIGHT_CODECS", "ZERO_VALUE", "fetch_blocks"]

#: Names of the codecs that nodes use by default.
RAW, ZERO_VALUE = "raw", "zero_value"

_CORE: dict[str, Codec] = {
    ZERO_VALUE: ZeroValueCodec(code=1),
    RAW: FixedCodec(code=0, block=1, block_bits=WORD, encoder=Passage, decoder=Passage, exact=True),
}


@functools.cache
def _codecs_of(owner: str) -> Mapping[str, Codec]:
    return feature(owner).codecs()


class _Codecs(Mapping[str, Codec]):
    """Codecs of the core and of features, keyed by name: all, or only for ``weights`` or ``gradients``."""

    def __init__(self, direction: str | None = None) -> None:
        self._direction = direction

    def __getitem__(self, name: str) -> Codec:
        if name not in self:
            raise KeyError(name)
        return _CORE[name] if name in _CORE else _codecs_of(feature_of_format(name))[name]

    def __contains__(self, name: Any) -> bool:
        return any(name == other for other in self)

    def __iter__(self) -> Iterator[str]:
        yield from (name for name, codec in _CORE.items() if not self._direction or getattr(codec, self._direction))
        yield from (name for name in format_names("ring")
                    if not self._direction or getattr(codes(name), self._direction))

    def __len__(self) -> int:
        return sum(1 for _ in self)


#: All codecs, by name.
CODECS: Mapping[str, Codec] = _Codecs()

#: Codecs for new weights.
WEIGHT_CODECS: Mapping[str, Codec] = _Codecs("weights")

#: Codecs for gradients and their sums. Sums that cannot be added in coded form are decoded and re-encoded at each
#: hop.
GRADIENT_CODECS: Mapping[str, Codec] = _Codecs("gradients")

#: Formats of weights that a server sends to its workers. A command contains the index of its format in this tuple,
#: and one pair of units implements all formats except the first.
FETCH_FORMATS = (RAW, *format_names("broadcast"))


def fetch_blocks() -> tuple[Any, ...]:
    """Return the block formats in :data:`FETCH_FORMATS`, in the same order, with the widest one last."""
    return tuple(CODECS[name].parameters["codec"] for name in FETCH_FORMATS[1:])
