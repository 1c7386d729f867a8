"""Mutants that are known to behave as the original does, with the reason: ``equivalent.toml``."""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests.mutation.mutants import Mutant

__all__ = ["LIST", "Entry", "EquivalentError", "load", "match"]

#: Where they are listed.
LIST = Path(__file__).with_name("equivalent.toml")


class EquivalentError(Exception):
    """The list is not in order."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A mutant in the list.

    Members
    -------
    file : str
    before, after : str
        As of :class:`~tests.mutation.mutants.Mutant`.
    reason : str
        Why no test can tell: an argument that names the line it rests on, or ``proof: …``.
    occurrence : int
        Which of several places with the same text, from 1 on.
    """

    file: str
    before: str
    after: str
    reason: str
    occurrence: int = 1

    @property
    def key(self) -> tuple[str, str, int]:
        return self.before, self.after, self.occurrence


def load(path: Path = LIST) -> list[Entry]:
    """The list, or :class:`EquivalentError` with the entry that is not complete or there twice."""
    entries = []
    for number, fields in enumerate(tomllib.loads(path.read_text()).get("mutant", []), start=1):
        try:
            entry = Entry(**fields)
        except TypeError as error:
            raise EquivalentError(f"Entry {number} of {path.name} must have file, before, after and reason, and may "
                                  f"have occurrence: {error}") from None
        if not entry.reason.strip():
            raise EquivalentError(f"Entry {number} of {path.name} must give a reason")
        if any((entry.file, *entry.key) == (other.file, *other.key) for other in entries):
            raise EquivalentError(f"Entry {number} of {path.name} must be there once: {entry.before}")
        entries.append(entry)
    return entries


def match(entries: list[Entry], mutants: Mapping[str, list[Mutant]]) -> dict[tuple[str, Mutant], Entry]:
    """The mutants that are listed, of files that are given, or :class:`EquivalentError` for an entry without one."""
    result = {}
    for entry in entries:
        if entry.file not in mutants:
            continue
        found = [mutant for mutant in mutants[entry.file] if mutant.key == entry.key]
        if not found:
            raise EquivalentError(f"No place of {entry.file} is any more what {LIST.name} lists; remove or renew:\n"
                                  f"  {entry.before}\n  {entry.after}")
        result[entry.file, found[0]] = entry
    return result
