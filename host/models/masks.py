"""Masks of a transformer's attention, and of the loss's gradient.

Attention is masked by replacement: a score whose place is masked becomes :data:`ALTERNATIVE`, so far below the others
that its weight is exactly zero. In the gradient of the loss rows of padding become zeros.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from host.models.layers import Array, Labels

__all__ = ["ALTERNATIVE", "Mask", "keep", "mask", "mask_rows"]

#: Value of a masked score. exp(x) is 0 in float32 below -104 and in float64 below -746, so a masked weight is
#: exactly zero as long as the largest score of its row is above -9,000.
ALTERNATIVE = -10000.0

#: Makes masked matrices of matrices in shape (sequences, matrices, rows, columns) and the length of each sequence.
Mask = Callable[[Array, Labels], Array]


def keep(positions: int, lengths: Labels) -> npt.NDArray[np.bool_]:
    """The scores that stay, a matrix for each sequence: row i, column j where j <= i and j < length.

    No row is masked wholly: column 0 stays in all of them.
    """
    index = np.arange(positions)
    causal = index <= index[:, None]
    padding = index < lengths[:, None]
    return np.asarray(causal & padding[:, None, :])


def mask(scores: Array, lengths: Labels) -> Array:
    """Scores where they stay, :data:`ALTERNATIVE` where they are masked."""
    return np.where(keep(scores.shape[-1], lengths)[:, None], scores, scores.dtype.type(ALTERNATIVE))


def mask_rows(gradients: Array, lengths: Labels) -> Array:
    """Rows where they are not padding, zeros where they are."""
    rows = np.arange(gradients.shape[-2]) < lengths[:, None]
    return np.where(rows[:, None, :, None], gradients, gradients.dtype.type(0))
