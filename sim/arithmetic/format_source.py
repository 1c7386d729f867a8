"""C++ source of one format's kernels, with constants and a codebook taken from the golden model."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sim.verilated.toolchain import without_comments

__all__ = ["FormatSource", "header"]

Bits = npt.NDArray[np.uint32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormatSource:
    """Kernels of a format.

    Members
    -------
    path : Path
        C++ file that defines ``encode`` and ``decode`` (see blocks.h).
    constants : mapping
        Numbers and arrays of one or two dimensions that constants.h defines, keyed by name.
    codebook : array of uint32, optional
        First argument of the functions.
    fixed : bool
        Whether the number of words of a packet depends only on its number of elements.
    """

    path: Path
    constants: Mapping[str, int | npt.NDArray[np.integer]] = dataclasses.field(default_factory=dict)
    codebook: Bits | None = None
    fixed: bool = True

    def files(self) -> dict[str, str]:
        """Contents of all files that the C++ file includes, keyed by name."""
        common = Path(__file__).parent
        paths = (self.path, *(common / name for name in ("common.h", "blocks.h", "planes.h")))
        return {"constants.h": header(self.constants), **{path.name: without_comments(path) for path in paths}}


def header(constants: Mapping[str, int | npt.NDArray[np.integer]]) -> str:
    """C++ header that defines constants of type int."""
    lines = []
    for name, value in constants.items():
        array = np.asarray(value)
        sizes = "".join(f"[{size}]" for size in array.shape)
        digits = str(array.tolist()).replace("[", "{").replace("]", "}")
        lines.append(f"constexpr int {name}{sizes} = {digits};\n")
    return "".join(lines)
