"""List of mutants that are known to behave like the original code, with reasons: ``equivalent.toml``."""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests.mutation.mutants import Mutant

#: File of the list of equivalent mutants.
LIST = Path(__file__).with_name("equivalent.toml")


class EquivalentError(Exception):
    """Error in the list of equivalent mutants."""


@dataclasses.dataclass(frozen=True)
class Entry:
    file: str  # path of the mutated file
    before: str  # ``before`` and ``after`` are explained in :class:`~tests.mutation.mutants.Mutant`
    after: str
    #: Reason for which no test can detect the mutant: an argument that quotes the line to which it refers, or
    #: ``proof: …``.
    reason: str
    occurrence: int = 1  # number, from 1, among positions with the same text

    @property
    def key(self) -> tuple[str, str, int]:
        return self.before, self.after, self.occurrence


def load(path: Path = LIST) -> list[Entry]:
    """Read the list of equivalent mutants; raise :class:`EquivalentError` if an entry is incomplete or repeated."""
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
    """Find the mutant of each entry for one of these files; raise :class:`EquivalentError` if there is none."""
    result = {}
    for entry in entries:
        if entry.file not in mutants:
            continue
        matches = [mutant for mutant in mutants[entry.file] if mutant.key == entry.key]
        if not matches:
            raise EquivalentError(f"No place of {entry.file} is any more what {LIST.name} lists; remove or renew:\n"
                                  f"  {entry.before}\n  {entry.after}")
        result[entry.file, matches[0]] = entry
    return result
