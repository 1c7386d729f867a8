"""The digits dataset: 1,797 real images of 8 x 8 pixels, shipped with scikit-learn."""

import dataclasses

import numpy as np
import numpy.typing as npt

__all__ = ["Dataset", "digits"]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Data set of training and test examples, one per row, with labels."""

    train_x: npt.NDArray[np.float32]
    train_y: npt.NDArray[np.int64]
    test_x: npt.NDArray[np.float32]
    test_y: npt.NDArray[np.int64]
    classes: int  # labels are 0 to ``classes`` - 1


def digits() -> Dataset:
    """Load handwritten digits, scaling pixels from 0 … 16 to 0 … 1.

    One fifth of the images, always the same and stratified by digit, is held out for testing.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    source = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        (source.data / 16).astype(np.float32), source.target.astype(np.int64),
        test_size=0.2, stratify=source.target, random_state=0)
    return Dataset(train_x, train_y, test_x, test_y, classes=10)
