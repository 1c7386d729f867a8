"""Checkpoint keys, which are stored in files and never appear in reports."""

import contextlib
import errno
import os
import secrets
from pathlib import Path

from host.output import OutputError

__all__ = ["key_of", "read_key", "user_key"]

#: Environment variable for the path of the user's key file.
VARIABLE = "GRADRING_KEY"

#: Number of bytes in a key, suitable for HMAC-SHA256, and maximum number of bytes to read from a key file.
BYTES, MOST = 32, 4096


def read_key(path: Path) -> bytes:
    """Read the key in a file.

    Raises ``ValueError`` if the file is too short or too long for a key, and ``OSError`` if it cannot be read.
    """
    with path.open("rb") as file:
        key = file.read(MOST + 1)
    if not BYTES <= len(key) <= MOST:
        raise ValueError(f"{path} must have a key of {BYTES} to {MOST:,} bytes")
    return key


def key_of(path: Path) -> bytes:
    """Read the key in a file; a missing file is created, accessible only to its owner."""
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(BYTES))
                file.flush()
                os.fsync(file.fileno())
            os.link(beside, path)  # fails if a key exists, and never exposes an incomplete key
        finally:
            beside.unlink()
    return read_key(path)


def user_key() -> bytes:
    """Read this user's key from the file GRADRING_KEY or the user's settings, creating it if necessary.

    Raises ``OutputError`` if the key does not exist and cannot be created, and ``ValueError`` if it is invalid.
    """
    named, settings = os.environ.get(VARIABLE), os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    try:
        path = Path(named) if named else Path(settings).expanduser() / "gradring" / "checkpoint.key"
        return key_of(path)
    except RuntimeError:  # raised by expanduser
        raise OutputError(errno.ENOENT, f"Home folder must be known for the key of checkpoints; set {VARIABLE} to a "
                                        f"file") from None
    except OSError as error:
        raise OutputError(error.errno, f"{path} must be readable, or free to be made, as the key of checkpoints: "
                                       f"{error.strerror}; set {VARIABLE} to another file") from None
