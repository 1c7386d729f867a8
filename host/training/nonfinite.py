"""Search the gradients of a training step for the first non-finite element, before they are summed."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from host.driver.words import Vector

__all__ = ["Locate", "first_nan", "first_nonfinite"]

#: Function that returns the layer name, the parameter name and the indices in the parameter for an index of the
#: parameter vector, or None for padding.
Locate = Callable[[int], tuple[str, str, tuple[int, ...]] | None]


def first_nan(gradients: Sequence[Vector], nodes: Sequence[int], locate: Locate) -> str | None:
    """Describe the first NaN of the first node that has one; None if there is none. For arguments see
    :func:`first_nonfinite`."""
    return _first(gradients, nodes, locate, np.isnan)


def first_nonfinite(gradients: Sequence[Vector], nodes: Sequence[int], locate: Locate) -> str | None:
    """Describe the first non-finite element of the first node that has one.

    If all elements are finite, describe the first element whose sum over the nodes is not finite. Return None if
    all sums are finite as well, which is always so for integers.

    Parameters
    ----------
    gradients : sequence of Vector
        Gradients of equal lengths.
    nodes : sequence of int
        Number of the node of each gradient.
    locate : Locate
    """
    first = _first(gradients, nodes, locate, lambda gradient: ~np.isfinite(gradient))
    if first is not None:
        return first
    with np.errstate(over="ignore", invalid="ignore"):
        wrong = np.flatnonzero(~np.isfinite(np.sum(gradients, axis=0)))
    return f"it is in {_text(locate, int(wrong[0]))}, and its addends are finite" if wrong.size else None


def _first(gradients: Sequence[Vector], nodes: Sequence[int], locate: Locate,
           is_wrong: Callable[[Vector], npt.NDArray[np.bool_]]) -> str | None:
    """Describe the first element for which ``is_wrong`` is true, on the first node that has one."""
    for node, gradient in zip(nodes, gradients, strict=True):
        wrong = np.flatnonzero(is_wrong(gradient))
        if wrong.size:
            more = f", the first of {wrong.size:,}" if wrong.size > 1 else ""
            return f"{gradient[wrong[0]]} of node {node} is in {_text(locate, int(wrong[0]))}{more}"
    return None


def _text(locate: Locate, index: int) -> str:
    """Return the text for an element, such as ``weight (3, 40) of layer 1``."""
    element = locate(index)
    if element is None:
        return f"padding at index {index:,}"
    layer, parameter, indices = element
    return f"{parameter} ({', '.join(map(str, indices))}) of {layer}"
