"""Compiled version of the nodes' optimizer, bit-identical to :func:`sim.golden.optimizer.update`.

Weights and state are updated in place, so that an update reads and writes each number once. State is in binary32, or
packed as in :mod:`sim.golden.moments`. The kernel is compiled when it is first used, and checked.
"""

import ctypes
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sim.arithmetic import library
from sim.arithmetic.format_source import header
from sim.arithmetic.library import address, checked
from sim.golden import moments
from sim.golden import optimizer as golden
from sim.golden.optimizer import Rule, Settings
from sim.verilated.toolchain import ToolError, compiler, without_comments

__all__ = ["FLAGS", "TEXT", "kernel", "load", "update"]

Bits = npt.NDArray[np.uint32]

_FOLDER = Path(__file__).parent

#: C++ source of the kernel.
TEXT = without_comments(_FOLDER / "optimizer.cpp")

#: Compiler options. Without ``errno``, a square root is a single instruction with the same result.
FLAGS = (*library.FLAGS, "-fno-math-errno")

#: Scalars of :class:`Settings`, in the kernel's order.
_SCALARS = ("gradient_scale", "learning_rate", "clip", "weight_factor", "first_decay", "first_gain", "second_decay",
            "second_gain", "epsilon")


def load(*, flags: Sequence[str] = FLAGS, text: str = TEXT) -> ctypes.CDLL:
    """Load the kernel's library, compiling it if necessary."""
    constants = {rule.name: rule.value for rule in Rule}
    constants |= {name.upper(): index for index, name in enumerate(_SCALARS)}
    files = {"optimizer.cpp": text, "common.h": library.COMMON, "constants.h": header(constants),
             "blocks.h": without_comments(_FOLDER / "blocks.h")}
    return library.load(library.built("optimizer", files, flags=flags), {"update": "NNNANAAAA"})


@functools.cache
def kernel() -> ctypes.CDLL:
    """Return the kernel's library of this process.

    Raises
    ------
    ToolError
        No compiler is available, or compiled updates differ from the golden model.
    """
    loaded = load()
    if not _agrees(loaded):
        raise ToolError(f"{compiler()} must make updates that round every operation to nearest even, and its library "
                        f"does not; CXX must name a compiler without options such as -ffast-math")
    return loaded


def _agrees(loaded: ctypes.CDLL) -> bool:
    """Whether updates of special values, and of numbers with many digits, are bit-identical to the golden model."""
    special = np.array([0, 1, 0x7F_FFFF, 0x80_0000, 0x3380_0000, 0x3F7F_8000, 0x3F80_0001, 0x4000_8000, 0x7F7F_FFFF,
                        0x7F80_0000, 0x7F80_0001], np.uint32)
    grids = np.meshgrid(*2 * [np.concatenate([special, special | np.uint32(1 << 31)])])
    scattered = np.arange(4 * 1024, dtype=np.uint32) * np.uint32(0x9E37_79B9)
    numbers = (scattered & np.uint32(0x82FF_FFFF) | np.uint32(0x3C00_0000)).reshape(4, 1024)
    gradient, weights, first, second = (np.concatenate([grid.ravel(), row]) for grid, row in zip(
        [*grids, *reversed(grids)], numbers, strict=True))
    second &= np.uint32(0x7FFF_FFFF)
    for rule, nesterov, factor, packed in itertools.product(Rule, (False, True), (0, 0x3DCC_CCCD), (False, True)):
        # With a gain of 1 and moments of zero, inputs halfway between bfloat16 numbers reach the rounding unchanged.
        settings = Settings(rule, gradient_scale=0x3F00_0000, learning_rate=0x3E99_999A, clip=0x7E80_0001,
                            weight_factor=factor, first_decay=0x3F66_6666,
                            first_gain=0x3F80_0000 if packed else 0x3DCC_CCCD, second_decay=0x3F7D_70A4,
                            second_gain=0x3C23_D70A, epsilon=0x322B_CC77, nesterov=nesterov)
        state = [first, second][:rule.planes]
        stored = [moments.pack(plane) if packed else plane.copy() for plane in state]
        result = weights.copy()
        expected, planes = golden.update(
            gradient, weights, [moments.unpack(words, len(gradient)) for words in stored] if packed else state,
            settings)
        _run(loaded, settings, len(gradient), [address(x) for x in (gradient, result, *stored)], packed=packed)
        if not np.array_equal(result, expected) or not all(
                np.array_equal(words, moments.pack(plane) if packed else plane)
                for words, plane in zip(stored, planes, strict=True)):
            return False
    return True


def _run(loaded: ctypes.CDLL, settings: Settings, count: int, addresses: Sequence[int], *, packed: bool) -> None:
    """Update arrays at the addresses of gradients, weights and each plane that the rule uses."""
    scalars = np.array([getattr(settings, name) for name in _SCALARS], np.uint32)
    unused = (None,) * (4 - len(addresses))
    loaded.update(settings.rule, bool(settings.nesterov), packed, address(scalars), count, *addresses, *unused)


def update(gradient: Bits, weights: Bits, state: Sequence[Bits], settings: Settings, *, packed: bool = False) -> None:
    """Update weights and state in place.

    The arrays are contiguous, one-dimensional, and must not overlap. New weights are computed from the new state
    before it is rounded to bfloat16. Threads can update different slices at the same time; slices of packed state
    start at even elements.

    Parameters
    ----------
    gradient : array of uint32 of shape (count,)
        Sum of the gradients; it is unchanged.
    weights : array of uint32 of shape (count,)
        Weights, which are replaced.
    state : sequence of arrays of uint32
        Planes of shape (count,), or (ceil(count / 2),) with ``packed``. The first ``settings.planes`` planes are
        updated, and all others are unused.
    settings : Settings
        Rule and scalars; not arrays, which only the golden model accepts.
    packed : bool
        Whether each word of the state holds two bfloat16 numbers.

    Raises
    ------
    ValueError
        Arrays or settings are not as described above.
    ToolError
        No compiler is available.
    """
    if any(isinstance(getattr(settings, name), np.ndarray) for name in (*_SCALARS, "nesterov")):
        raise ValueError("Settings must be scalars, not arrays")
    if len(state) < settings.planes:
        raise ValueError(f"State of rule {settings.rule.name} must have {settings.planes!r} planes, not "
                         f"{len(state)!r}")
    planes, count = state[:settings.planes], len(gradient)
    size = -(-count // 2) if packed else count
    addresses = [checked("Gradients", gradient), checked("Weights", weights, count, written=True),
                 *(checked(f"Plane {index} of the state", plane, size, written=True)
                   for index, plane in enumerate(planes))]
    arrays = (gradient, weights, *planes)
    extents = sorted((start, start + x.nbytes) for start, x in zip(addresses, arrays, strict=True))
    if any(end > start for (_, end), (start, _) in itertools.pairwise(extents)):
        raise ValueError("Gradients, weights and planes of the state must not overlap")
    _run(kernel(), settings, count, addresses, packed=packed)
