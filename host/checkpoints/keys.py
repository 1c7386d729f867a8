"""Keys of checkpoints, which are kept in files and appear in no report."""

import contextlib
import errno
import os
import secrets
from pathlib import Path

from host.output import OutputError

__all__ = ["key_of", "read_key", "user_key"]

#: Variable of the environment that names the file of the user's key.
VARIABLE = "GRADRING_KEY"

#: Bytes of a key, as of an HMAC-SHA256, and maximum bytes that are read.
BYTES, MOST = 32, 4096


def read_key(path: Path) -> bytes:
    """The key in a file.

    Raises ``ValueError`` if the file is too short or too long for a key, and ``OSError`` if it cannot be read.
    """
    with path.open("rb") as file:
        key = file.read(MOST + 1)
    if not BYTES <= len(key) <= MOST:
        raise ValueError(f"{path} must have a key of {BYTES} to {MOST:,} bytes")
    return key


def key_of(path: Path) -> bytes:
    """The key in a file; a missing file is made, for its owner only."""
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(BYTES))
                file.flush()
                os.fsync(file.fileno())
            os.link(beside, path)  # which fails where there is a key, and never shows half of one
        finally:
            beside.unlink()
    return read_key(path)


def user_key() -> bytes:
    """The key of this user: of the file that GRADRING_KEY names, or of the user's settings, which is made if need be.

    Raises ``OutputError`` if there is no key, and none can be made, and ``ValueError`` if the file has no key.
    """
    named, settings = os.environ.get(VARIABLE), os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    try:
        path = Path(named) if named else Path(settings).expanduser() / "gradring" / "checkpoint.key"
        return key_of(path)
    except RuntimeError:  # of expanduser
        raise OutputError(errno.ENOENT, f"Home folder must be known for the key of checkpoints; set {VARIABLE} to a "
                                        f"file") from None
    except OSError as error:
        raise OutputError(error.errno, f"{path} must be readable, or free to be made, as the key of checkpoints: "
                                       f"{error.strerror}; set {VARIABLE} to another file") from None
