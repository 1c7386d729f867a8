"""Logs of a relay's edits, as they are read: every field is checked before a run begins."""

import itertools
from pathlib import Path
from typing import Any

from hdl.compression.registry import FETCH_FORMATS
from host.relay.edits import Kind
from host.relay.plan import LARGEST
from sim import json_files
from sim.fields import choice, integer, number, record, several, text

__all__ = ["read_log"]

#: Bounds of a log: words of a memory, width of a layer, layers, sets of a run, and parameters of its model.
_WORDS, _WIDEST, _LAYERS, _SETS, _PARAMETERS = 1 << 20, 4096, 256, 1 << 20, 1 << 24

_words, _count, _digest = integer(1, _WORDS), integer(1, LARGEST), text("[0-9a-f]{32}")
_rate = number(0, 3e38)
_WORKER = record(lanes=integer(1, 64), weight_words=_words, gradient_words=_words, activation_words=_words,
                 far_words=_words, windows=integer(2, 4096))
_START = record(widths=several(integer(1, _WIDEST), 2, _LAYERS + 1),
                formats=several(choice(FETCH_FORMATS), 1, _LAYERS), microbatches=_count, rate=_rate,
                microbatch=_count, worker=_WORKER, digest=_digest)
_VALUES = {Kind.ADD: integer(1, _WIDEST), Kind.FORMAT: choice(FETCH_FORMATS), Kind.MICROBATCHES: _count,
           Kind.RATE: _rate}


def _edit(value: Any) -> bool:
    """Whether a value is an edit."""
    fields = record(number=integer(1, _SETS), set=integer(0, _SETS), layer=integer(0, _LAYERS),
                    kind=choice([kind.value for kind in Kind]), value=lambda value: True, digest=_digest)
    return fields(value) and _VALUES.get(Kind(value["kind"]), _removed)(value["value"])


def _removed(value: Any) -> bool:
    """Whether a value is that of an edit which takes none."""
    return value is None or integer(0, _WIDEST)(value)


_LOG = {"start": _START, "workers": integer(1, 64), "seed": integer(0, 1 << 63), "sets": integer(0, _SETS),
        "edits": several(_edit, 0, _SETS), "losses": several(text("[0-9a-f]{8}"), 0, _SETS),
        "digest": text("[0-9a-f]{64}")}


def read_log(path: Path) -> dict[str, Any]:
    """Read a log that `gradring relay` has written; ``ValueError`` if the file is damaged, or another; the message
    names it, and the first field that is wrong."""
    try:
        log = json_files.read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"Log of edits must be a file that `gradring relay` has written, not {path}: "
                         f"{error}") from error
    if not isinstance(log, dict) or not _LOG.keys() <= log.keys():
        raise ValueError(f"Log of edits must have {', '.join(_LOG)}, and {path} has not")
    for name, check in _LOG.items():
        if not check(log[name]):
            raise ValueError(f"Log of edits must have {name} as `gradring relay` writes it, and {path} has not")
    if len(log["losses"]) != log["sets"]:
        raise ValueError(f"Log of edits must have a loss for each of {log['sets']} sets, and {path} has "
                         f"{len(log['losses'])}")
    if sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(log["start"]["widths"])) > _PARAMETERS:
        raise ValueError(f"Log of edits must be of at most {_PARAMETERS:,} parameters, and {path} is not")
    return log
