"""The ledger of a migration: a file that says who owns a job, replaced in one piece."""

import dataclasses
from pathlib import Path

from host.output import write_json
from sim import json_files
from sim.fields import integer, record, text

__all__ = ["Entry", "Ledger", "LedgerError"]


class LedgerError(ValueError):
    """The ledger cannot be read, or says something else than its user believes."""


_ENTRY = record(owner=text(r"[ -~]{0,256}"), sequence=integer(-1, 1 << 62))


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
            value = json_files.read(self._path)
        except (OSError, ValueError):
            value = None
        if not _ENTRY(value):
            raise LedgerError(f"{self._path} must be a ledger, with the owner of a job and a number")
        return Entry(**value)

    def commit(self, entry: Entry) -> None:
        """Make this the present entry."""
        write_json(self._path, dataclasses.asdict(entry))
