"""Reading of whole files with a limit on their size."""

from pathlib import Path

__all__ = ["read_bytes"]


def read_bytes(path: Path, *, largest: int) -> bytes:
    """Read a file with a size limit of ``largest`` bytes.

    Raises
    ------
    ValueError
        The file is larger. The caller adds the file's name to the message.
    OSError
        The file cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"it must have at most {largest:,} bytes")
    return data
