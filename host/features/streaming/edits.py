"""Model edits during layer streaming, the program banks that apply them, and edit logs.

The assessor reads the results of set s. Its edit is sent to all nodes during set s + 1, and takes effect in set s +
2, which begins after every node has acknowledged it. One bank of a node contains the program of the running set, the
other one the next program; the node switches banks only between sets. A node rejects an edit that arrives late or
twice, that it cannot apply, or that does not result in the program with the edit's digest; the banks then remain
unchanged. All fields of a log are checked before a run begins.
"""

import dataclasses
import enum
import hashlib
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hdl.choices import choice_error
from hdl.compression.registry import FETCH_FORMATS
from host.features.streaming.plan import LARGEST, StreamingPlan, Worker, make_streaming_plan
from sim import fields, json_files

__all__ = ["Banks", "Edit", "Kind", "RefusedError", "Structure", "edited", "make_edit", "read_log"]


class RefusedError(ValueError):
    """Raised when a node rejects an edit."""


class Kind(enum.Enum):
    """Kinds of edits.

    ``add`` inserts a layer with ``value`` inputs and outputs before the edit's layer; ``remove`` removes a layer with
    as many inputs as outputs. ``format`` changes a layer's weight format in FETCH, ``microbatches`` the number of
    microbatches in a set, and ``rate`` the learning rate; these two have layer 0.
    """

    ADD = "add"
    REMOVE = "remove"
    FORMAT = "format"
    MICROBATCHES = "microbatches"
    RATE = "rate"


_KINDS = [kind.value for kind in Kind]


@dataclasses.dataclass(frozen=True)
class Structure:
    """Editable parameters of a set's program; raises ``ValueError`` if they are invalid or do not fit."""

    #: Number of inputs, followed by the number of outputs of each layer.
    widths: tuple[int, ...]
    #: Format of each layer's weights.
    formats: tuple[str, ...]
    #: Number of microbatches in a set.
    count: int
    #: Learning rate, rounded to binary32.
    rate: float
    #: Number of examples in a microbatch.
    microbatch: int
    worker: Worker
    plan: StreamingPlan = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.formats) != len(self.widths) - 1:
            raise ValueError(f"Formats must be one for each of {len(self.widths) - 1} layers, not "
                             f"{len(self.formats)}")
        for name in self.formats:
            if name not in FETCH_FORMATS:
                raise ValueError(choice_error("Format", FETCH_FORMATS, name))
        if not 0 <= self.rate <= np.finfo(np.float32).max:
            raise ValueError(f"Rate must be a finite number of zero or more, not {self.rate!r}")
        object.__setattr__(self, "rate", float(np.float32(self.rate)))
        plan = make_streaming_plan(self.widths, worker=self.worker, count=self.count, microbatch=self.microbatch)
        units = tuple(dataclasses.replace(unit, format=self.formats[unit.layer - 1]) for unit in plan.units)
        object.__setattr__(self, "plan", dataclasses.replace(plan, units=units))

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.formats)

    @property
    def digest(self) -> str:
        """First half of the SHA-256 of the plan and the learning rate."""
        text = f"{self.plan.digest} {np.float32(self.rate).view(np.uint32):08x}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def described(self) -> dict[str, Any]:
        """Return the entry for a log."""
        return {"widths": list(self.widths), "formats": list(self.formats), "microbatches": self.count,
                "rate": self.rate, "microbatch": self.microbatch, "worker": dataclasses.asdict(self.worker),
                "digest": self.digest}

    @classmethod
    def parse(cls, entry: Mapping[str, Any]) -> "Structure":
        """Parse the program at the start of a log."""
        return cls(widths=tuple(entry["widths"]), formats=tuple(entry["formats"]), count=entry["microbatches"],
                   rate=entry["rate"], microbatch=entry["microbatch"], worker=Worker(**entry["worker"]))


@dataclasses.dataclass(frozen=True)
class Edit:
    """An edit of the model, which changes the program from a given set on."""

    #: Number of the edit; edits are numbered in ascending order from 1.
    number: int
    #: Index of the first set that uses the edit.
    set: int
    #: Number of the layer, from 1, or 0 if the edit does not refer to a layer.
    layer: int
    kind: Kind
    #: Width, format, number of microbatches or learning rate, depending on the kind.
    value: int | float | str
    #: Digest of the resulting program.
    digest: str

    def described(self) -> dict[str, Any]:
        """Return the entry for a log."""
        return {**dataclasses.asdict(self), "kind": self.kind.value}

    @classmethod
    def parse(cls, entry: Any) -> "Edit":
        """Parse a log entry; raises ``RefusedError`` if it is damaged."""
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(entry, dict) or sorted(entry) != sorted(names):
            raise RefusedError(f"Edit must have {', '.join(names)}, not {json.dumps(entry)}")
        if entry["kind"] not in _KINDS:
            raise RefusedError(f"Edit must be one of {', '.join(_KINDS)}, not {entry['kind']!r}")
        for name in ("number", "set", "layer"):
            if isinstance(entry[name], bool) or not isinstance(entry[name], int) or entry[name] < 0:
                raise RefusedError(f"Edit's {name} must be a number of zero or more, not {entry[name]!r}")
        return cls(**{**entry, "kind": Kind(entry["kind"])})

    @property
    def line(self) -> str:
        """One-line description of the edit."""
        where = f" of layer {self.layer}" if self.layer else ""
        return f"edit {self.number}, from set {self.set} on: {self.kind.value}{where} {self.value}"


def _layer(structure: Structure, layer: int) -> int:
    if not 1 <= layer <= structure.layers:
        raise RefusedError(f"Edit's layer must be 1 to {structure.layers}, not {layer!r}")
    return layer


def edited(structure: Structure, layer: int, kind: Kind, value: int | float | str) -> Structure:
    """Return the program that results from an edit. Raises ``RefusedError`` if the layer does not exist, or the
    program is invalid or does not fit."""
    widths, formats = list(structure.widths), list(structure.formats)
    changes: dict[str, Any] = {}
    match kind:
        case Kind.ADD:
            width = widths[_layer(structure, layer) - 1]
            if value != width:
                raise RefusedError(f"Edit must add a layer of {width} outputs in front of layer {layer}, not of "
                                   f"{value!r}")
            widths.insert(layer, width)
            formats.insert(layer - 1, formats[layer - 1])
        case Kind.REMOVE:
            if _layer(structure, layer) == structure.layers or widths[layer - 1] != widths[layer]:
                raise RefusedError(f"Edit must remove a layer with as many outputs as inputs, and not the last, not "
                                   f"layer {layer} of {structure.widths}")
            del widths[layer]
            del formats[layer - 1]
        case Kind.FORMAT:
            formats[_layer(structure, layer) - 1] = str(value)
        case Kind.MICROBATCHES | Kind.RATE:
            wanted = (int,) if kind is Kind.MICROBATCHES else (int, float)
            if isinstance(value, bool) or not isinstance(value, wanted):
                raise RefusedError(f"Value of {kind.value} must be a number, not {value!r}")
            if layer:
                raise RefusedError(f"Layer of {kind.value} must be 0, not {layer!r}")
            changes = {"count" if kind is Kind.MICROBATCHES else "rate": value}
    try:
        return dataclasses.replace(structure, widths=tuple(widths), formats=tuple(formats), **changes)
    except ValueError as error:
        raise RefusedError(str(error)) from error


def make_edit(structure: Structure, *, number: int, set: int, layer: int, kind: Kind,
              value: int | float | str) -> Edit:
    """Create an edit of a program, including the digest of the resulting program."""
    return Edit(number, set, layer, kind, value, edited(structure, layer, kind, value).digest)


class Banks:
    """Model of a node's two program banks; all workers and the server have the same programs."""

    def __init__(self, structure: Structure):
        #: Program of the running set.
        self.current = structure
        #: Number of the running set.
        self.set = -1
        self._next: Structure | None = None
        self._number = 0

    @property
    def following(self) -> Structure:
        """The program of the next set."""
        return self._next or self.current

    def receive(self, edit: Edit) -> int:
        """Apply an edit to the other bank and return its number as acknowledgement. Raises ``RefusedError`` if the
        edit is late, repeated or impossible."""
        if edit.number <= self._number:
            raise RefusedError(f"Edit must be a new one behind number {self._number}, not {edit.number}")
        if edit.set != self.set + 1:
            raise RefusedError(f"Edit must hold from set {self.set + 1} on while set {self.set} runs, not from "
                               f"{edit.set}")
        made = edited(self.following, edit.layer, edit.kind, edit.value)
        if made.digest != edit.digest:
            raise RefusedError(f"Edit must lead to the program {made.digest}, not {edit.digest}")
        self._next, self._number = made, edit.number
        return edit.number

    def begin(self, number: int) -> Structure:
        """Begin the next set, switching banks if there is a new program."""
        if number != self.set + 1:
            raise ValueError(f"Sets must follow each other, {self.set + 1}, not {number!r}")
        self.set, self.current, self._next = number, self.following, None
        return self.current


#: Limits for a log: words per memory, layer width, and numbers of layers, of sets in a run, and of parameters.
_WORDS, _WIDEST, _LAYERS, _SETS, _PARAMETERS = 1 << 20, 4096, 256, 1 << 20, 1 << 24

_words, _count, _digest = fields.integer(1, _WORDS), fields.integer(1, LARGEST), fields.text("[0-9a-f]{32}")
_rate = fields.number(0, 3e38)
_WORKER = fields.record(lanes=fields.integer(1, 64), weight_words=_words, gradient_words=_words,
                        activation_words=_words, far_words=_words, windows=fields.integer(2, 4096))
_START = fields.record(widths=fields.several(fields.integer(1, _WIDEST), 2, _LAYERS + 1),
                       formats=fields.several(fields.choice(FETCH_FORMATS), 1, _LAYERS), microbatches=_count,
                       rate=_rate, microbatch=_count, worker=_WORKER, digest=_digest)
_VALUES = {Kind.ADD: fields.integer(1, _WIDEST), Kind.REMOVE: fields.optional(fields.integer(0, _WIDEST)),
           Kind.FORMAT: fields.choice(FETCH_FORMATS), Kind.MICROBATCHES: _count, Kind.RATE: _rate}


_EDIT = fields.record(
    number=fields.integer(1, _SETS), set=fields.integer(0, _SETS), layer=fields.integer(0, _LAYERS),
    kind=fields.choice(_KINDS), value=lambda value: True, digest=_digest)


def _edit(value: Any) -> bool:
    """Whether a value from a log is a valid edit."""
    return _EDIT(value) and _VALUES[Kind(value["kind"])](value["value"])


_LOG = {"start": _START, "workers": fields.integer(1, 64), "seed": fields.integer(0, 1 << 63),
        "sets": fields.integer(0, _SETS), "edits": fields.several(_edit, 0, _SETS),
        "losses": fields.several(fields.text("[0-9a-f]{8}"), 0, _SETS), "digest": fields.text("[0-9a-f]{64}")}


def read_log(path: Path) -> dict[str, Any]:
    """Read a log of `gradring lab streaming`. Raises ``ValueError``, naming the file and the first invalid field, if
    the file is damaged or of a different kind."""
    try:
        log = json_files.read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"Log of edits must be a file that `gradring lab streaming` has written, not {path}: "
                         f"{error}") from error
    if not isinstance(log, dict) or not _LOG.keys() <= log.keys():
        raise ValueError(f"Log of edits must have {', '.join(_LOG)}, and {path} has not")
    for name, check in _LOG.items():
        if not check(log[name]):
            raise ValueError(f"Log of edits must have {name} as `gradring lab streaming` writes it, and "
                             f"{path} has not")
    if len(log["losses"]) != log["sets"]:
        raise ValueError(f"Log of edits must have a loss for each of {log['sets']} sets, and {path} has "
                         f"{len(log['losses'])}")
    if sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(log["start"]["widths"])) > _PARAMETERS:
        raise ValueError(f"Log of edits must be of at most {_PARAMETERS:,} parameters, and {path} is not")
    return log
