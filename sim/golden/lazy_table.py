"""Tables keyed by name, with entries of features that are imported on demand."""

import dataclasses
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

from hdl.registry import FEATURES

__all__ = ["LazyTable", "OnDemand"]

Entry = TypeVar("Entry")


@dataclasses.dataclass(frozen=True)
class OnDemand(Generic[Entry]):
    """Entry created on demand from an object in a module.

    Parameters
    ----------
    target : str
        Module and object, as ``module:object``.
    make : callable
        Function that creates the entry from the object.
    """

    target: str
    make: Callable[[Any], Entry]

    @property
    def present(self) -> bool:
        """Whether this copy of the project includes the entry's feature."""
        owner = re.search(r"\.features\.(\w+)\.", self.target)
        return owner is None or owner[1] in FEATURES

    def load(self) -> Entry:
        """Import the module and create the entry."""
        module, name = self.target.split(":")
        return self.make(getattr(importlib.import_module(module), name))


class LazyTable(MutableMapping[str, Entry]):
    """Entries keyed by name, in insertion order; each is loaded when it is first read. Entries of features that this
    copy does not include are omitted.

    Parameters
    ----------
    entries : mapping
        Entries, or an :class:`OnDemand` for each entry of a feature.
    """

    def __init__(self, entries: Mapping[str, Entry | OnDemand[Entry]]) -> None:
        self._entries = {name: entry for name, entry in entries.items()
                         if not isinstance(entry, OnDemand) or entry.present}

    def __getitem__(self, name: str) -> Entry:
        entry = self._entries[name]
        if isinstance(entry, OnDemand):
            entry = self._entries[name] = entry.load()
        return entry

    def __setitem__(self, name: str, entry: Entry | OnDemand[Entry]) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # does not import the entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
