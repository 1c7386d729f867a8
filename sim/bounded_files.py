"""Bounded reads of whole files."""

from pathlib import Path

__all__ = ["read_bytes"]


def read_bytes(path: Path, *, largest: int) -> bytes:
    """Read a file of at most ``largest`` bytes.

    Raises
    ------
    ValueError
        The file is larger; the caller prefixes the message with the file's name.
    OSError
        The file cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"it must have at most {largest:,} bytes")
    return data
