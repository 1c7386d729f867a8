"""Training checkpoints, from which a run can continue: files of format 1 with a process frame.

:mod:`host.checkpoints` describes the format. When a run continues, the nodes of a ring receive the state of the
golden model, so no device frame is needed. The manifest is authenticated with the user's key
(:func:`host.checkpoints.keys.user_key`).
"""

import importlib.metadata
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from host.checkpoints.archive import unpack_state
from host.checkpoints.checkpoint import ProcessFrame, Stamp, examine, make
from host.checkpoints.device_frame import DeviceFrame
from host.checkpoints.keys import user_key
from host.checkpoints.rejections import RejectionError
from host.output import write_bytes
from sim import json_files

__all__ = ["ADVICE", "NAME", "CheckpointError", "load", "packed", "peek", "save", "versions"]

NAME = "checkpoint.tar"

#: Maximum number of differences that an error message lists, and maximum length of each value.
_MAX_SHOWN, _LONGEST_SHOWN = 6, 60

#: File name used by versions before format 1.
_OLD = "checkpoint.npz"


class CheckpointError(ValueError):
    """Raised if a file is not a checkpoint of this run. The message gives the reason in one line."""


def versions() -> dict[str, str]:
    """Return the versions that exact results depend on: gradring, Python, and numpy, which draws initial weights."""
    return {"gradring": importlib.metadata.version("gradring"), "python": platform.python_version(),
            "numpy": np.__version__}


def save(path: Path, identity: dict[str, Any], content: Any, *, device: DeviceFrame | None = None) -> None:
    """Replace a file with a :func:`packed` checkpoint; raise ``OutputError`` if it cannot be written."""
    write_bytes(path, packed(identity, content, device=device))


def packed(identity: dict[str, Any], content: Any, *, device: DeviceFrame | None = None) -> bytes:
    """Encode a checkpoint as bytes; raises ``OutputError`` if the key cannot be written.

    ``identity`` is a dictionary of dictionaries, as in JSON, and must be the same when the file is read. ``content``
    consists of None, numbers, strings and arrays, in lists and dictionaries with string keys; ``device`` is a frame.
    """
    state = content.get("state") if isinstance(content, dict) else None
    batches = state.get("batches") if isinstance(state, dict) else None
    frame = ProcessFrame(state={"identity": identity, "content": content}, order=batches,
                         step=batches["number"] if batches else 0)
    return make(frame, device, key=user_key(), stamp=Stamp(time=int(time.time())))


def load(path: Path, identity: dict[str, Any]) -> Any:
    """Read the content of a file. Raises ``CheckpointError`` if it is damaged, truncated, not a checkpoint, or from a
    different run, and ``OSError`` if it cannot be read."""
    state = peek(path)
    differences = _differences(json_files.parse_product(json.dumps(identity)), state["identity"])
    if differences:
        more = f" and {len(differences) - _MAX_SHOWN} others" if len(differences) > _MAX_SHOWN else ""
        raise CheckpointError(f"{path} must be of a run with the same options and versions, not with "
                              f"{', '.join(differences[:_MAX_SHOWN])}{more}; take those, or {ADVICE}")
    return state["content"]


def peek(path: Path) -> dict[str, Any]:
    """Read the identity and content of a checkpoint of any run; raises the same errors as :func:`load`."""
    old = path.with_name(_OLD)
    path = old if not path.exists() and old.exists() else path
    try:
        with path.open("rb") as file:
            archive = examine(file, key=user_key())
        archive.check_regions()
        state: dict[str, Any] = unpack_state(archive.regions) if archive.manifest["process"] else {}
    except RejectionError as error:
        raise CheckpointError(f"{path} must be a whole checkpoint of this user: {error}; {ADVICE}") from None
    if not isinstance(state, dict) or state.keys() != {"identity", "content"}:
        raise CheckpointError(f"{path} must be a checkpoint of training; {ADVICE}")
    return state


#: Advice in the error message if a run cannot continue from a checkpoint file.
ADVICE = "leave out --resume to begin anew"


def _differences(here: Any, there: Any, name: str = "") -> list[str]:
    """List the entries of the identity that differ between a run and a checkpoint file, with both values."""
    if isinstance(here, dict) and isinstance(there, dict):
        return [text for key in sorted({*here, *there})
                for text in _differences(here.get(key), there.get(key), key if name in _LEVELS else f"{name}.{key}")]
    return [] if here == there else [f"{name} {_brief(there)} (here {_brief(here)})"]


def _brief(value: Any) -> str:
    """Format a value as Python does, on one line of limited length."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN // 2]} … {text[-_LONGEST_SHOWN // 2:]}"


#: Keys of an identity's nested dictionaries that error messages leave out of the names of entries.
_LEVELS = ("", "options", "versions")
