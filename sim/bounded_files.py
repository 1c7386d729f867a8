"""Files that are read whole, but no further than a bound."""

from pathlib import Path

__all__ = ["read_bytes"]


def read_bytes(path: Path, *, largest: int) -> bytes:
    """Content of a file that has at most ``largest`` bytes.

    Raises
    ------
    ValueError
        The file is larger; the message goes after the name of the file.
    OSError
        It cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"it must have at most {largest:,} bytes")
    return data
