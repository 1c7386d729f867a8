"""Search a rank's gradients for non-finite elements before they are summed."""

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch

from host.pytorch.messages import NonFinite

__all__ = ["first_nonfinite"]


def first_nonfinite(gradients: Iterable[tuple[torch.Tensor, torch.Tensor | None]],
                    name: Callable[[torch.Tensor], str]) -> NonFinite | None:
    """Return the first non-finite element of a rank's gradients, or None.

    Parameters
    ----------
    gradients : iterable of (Tensor, Tensor or None)
        Each parameter and its gradient.
    name : function
        Returns the name of a parameter.
    """
    first, count = None, 0
    for parameter, gradient in gradients:
        # If the sum is finite, so are all elements. This is much faster than a search.
        if gradient is None or math.isfinite(float(gradient.detach().sum())):
            continue
        wrong = ~gradient.detach().isfinite()
        count += int(wrong.sum())
        if first is None and wrong.any():
            indices = np.unravel_index(int(wrong.reshape(-1).int().argmax()), gradient.shape)
            first = name(parameter), tuple(map(int, indices)), str(gradient.detach()[indices].item())
    if first is None:
        return None
    return NonFinite(parameter=first[0], indices=first[1], value=first[2], count=count)
