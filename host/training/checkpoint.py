"""Checkpoints of training: files of format 1 with a process frame, that the rest of a run depends on.

:mod:`host.checkpoints` has the format. When a run continues, the nodes of a ring get the state of the golden model,
so that no device frame is needed. The manifest is authenticated with the user's key
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

#: Differences of a file that a message has, and characters of each value in it.
_MAX_SHOWN, _LONGEST_SHOWN = 6, 60

#: Name of the files that versions before format 1 have written.
_OLD = "checkpoint.npz"


class CheckpointError(ValueError):
    """A file is no checkpoint of this run; the message says why in one line."""


def versions() -> dict[str, str]:
    """Versions that the bits of a run depend on: program, Python, and numpy, which draws the first weights."""
    return {"gradring": importlib.metadata.version("gradring"), "python": platform.python_version(),
            "numpy": np.__version__}


def save(path: Path, identity: dict[str, Any], content: Any, *, device: DeviceFrame | None = None) -> None:
    """Replace a file by a checkpoint of :func:`packed`; ``OutputError`` if it cannot be written."""
    write_bytes(path, packed(identity, content, device=device))


def packed(identity: dict[str, Any], content: Any, *, device: DeviceFrame | None = None) -> bytes:
    """Bytes of a checkpoint; ``OutputError`` if the key cannot be written.

    ``identity`` must be the same where the file is read: a dictionary of dictionaries, as JSON has them. ``content``
    is None, numbers, texts and arrays, in lists and in dictionaries with texts as keys; ``device`` is of nodes.
    """
    state = content.get("state") if isinstance(content, dict) else None
    batches = state.get("batches") if isinstance(state, dict) else None
    frame = ProcessFrame(state={"identity": identity, "content": content}, order=batches,
                         step=batches["number"] if batches else 0)
    return make(frame, device, key=user_key(), stamp=Stamp(time=int(time.time())))


def load(path: Path, identity: dict[str, Any]) -> Any:
    """The content of a file; ``CheckpointError`` if it is damaged, torn, another, or of another run, ``OSError`` if
    it cannot be read."""
    state = peek(path)
    differences = _differences(json_files.parse_product(json.dumps(identity)), state["identity"])
    if differences:
        more = f" and {len(differences) - _MAX_SHOWN} others" if len(differences) > _MAX_SHOWN else ""
        raise CheckpointError(f"{path} must be of a run with the same options and versions, not with "
                              f"{', '.join(differences[:_MAX_SHOWN])}{more}; take those, or {ADVICE}")
    return state["content"]


def peek(path: Path) -> dict[str, Any]:
    """Identity and content of a file of any run; raises as :func:`load` does."""
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


#: Advice where a run cannot continue from a file.
ADVICE = "leave out --resume to begin anew"


def _differences(here: Any, there: Any, name: str = "") -> list[str]:
    """Names and values of the entries that differ in the file."""
    if isinstance(here, dict) and isinstance(there, dict):
        return [text for key in sorted({*here, *there})
                for text in _differences(here.get(key), there.get(key), key if name in _LEVELS else f"{name}.{key}")]
    return [] if here == there else [f"{name} {_brief(there)} (here {_brief(here)})"]


def _brief(value: Any) -> str:
    """A value as in Python, in one line that is not long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN // 2]} … {text[-_LONGEST_SHOWN // 2:]}"


#: Names of the levels of an identity that messages leave out.
_LEVELS = ("", "options", "versions")
