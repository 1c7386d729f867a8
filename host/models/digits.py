"""The digits data set: 1,797 real images of 8 x 8 pixels, included in scikit-learn."""

import dataclasses

import numpy as np
import numpy.typing as npt

__all__ = ["Dataset", "digits"]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Examples for training and for testing, one per row, with their labels."""

    train_x: npt.NDArray[np.float32]
    train_y: npt.NDArray[np.int64]
    test_x: npt.NDArray[np.float32]
    test_y: npt.NDArray[np.int64]
    classes: int  # labels are 0 to ``classes`` - 1


def digits() -> Dataset:
    """Load handwritten digits, with pixels scaled from 0 … 16 to 0 … 1.

    A fifth of the images, the same in every run and with all digits in proportion, is reserved for testing.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    source = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        (source.data / 16).astype(np.float32), source.target.astype(np.int64),
        test_size=0.2, stratify=source.target, random_state=0)
    return Dataset(train_x, train_y, test_x, test_y, classes=10)
