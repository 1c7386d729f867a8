"""The ledger of a migration: a file that says who owns a job, replaced in one piece."""

import dataclasses
import json
from pathlib import Path

from host.output import write_json

__all__ = ["Entry", "Ledger", "LedgerError"]


class LedgerError(ValueError):
    """The ledger cannot be read, or says something else than its user believes."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """Owner of the job, and the number of the checkpoint that it went on from."""

    owner: str
    sequence: int


class Ledger:
    """The ledger in a file.

    A commit replaces the file by an atomic rename, so that it has the entry before or the one after, whenever a
    process is killed: the owner that it names, and no other, may run the job.

    Members
    -------
    calls : frozenset of str
        Calls that tenants may make.
    """

    calls = frozenset({"read", "commit"})

    def __init__(self, path: Path):
        self._path = path

    def read(self) -> Entry:
        """The present entry; a ``LedgerError`` if there is none."""
        try:
            found = json.loads(self._path.read_bytes())
            return Entry(str(found["owner"]), int(found["sequence"]))
        except (OSError, ValueError, KeyError, TypeError):
            raise LedgerError(f"{self._path} must be a ledger, with the owner of a job and a number") from None

    def commit(self, entry: Entry) -> None:
        """Make this the present entry."""
        write_json(self._path, dataclasses.asdict(entry))
