"""Files of numpy arrays, as they are read: whole, and without pickles."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["read_arrays"]


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read all arrays of an npz file, by name.

    Raises
    ------
    ValueError
        The file is damaged, or no npz file.
    OSError
        The file cannot be read.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file):
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise ValueError(f"{path} must be an npz file, not a damaged one or another: {error}") from None
