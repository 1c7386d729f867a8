"""Codecs of a ring in software."""

from sim.arithmetic import formats
from sim.golden.codecs import CODECS, RAW

__all__ = ["kernels_of"]


def kernels_of(name: str) -> formats.Kernels:
    """Kernels of the packets of a codec. An exact codec has raw packets here, since its sums are those of raw.

    Raises ValueError if the packets of the codec have no fixed size, or if it needs a codebook.
    """
    codec = CODECS[name]
    if not codec.exact and name in formats.names():
        kernels = formats.kernels(name)
        if kernels.source.fixed and kernels.source.codebook is None:
            return kernels
    elif codec.exact:
        return formats.kernels(RAW)
    raise ValueError(f"Codec of a ring in software must have packets of a fixed size, without a codebook, and {name} "
                     f"does not: use golden or Verilated nodes")
