"""Report of a migration: its schema, and a table of the cycles in which the job stood still."""

from typing import Any

from host.columns import Column, Table, columns_of
from host.migration.migrate import Downtime
from host.schema import Schema

__all__ = ["SCHEMA", "table"]

#: Report of a migration.
SCHEMA = Schema("gradring.migration", 1, "gradring migrate: build/migrate/migrate.json", {"Fields": (
    *columns_of(Downtime), Column("cycles", help="Cycles in which the job stood still."),
    Column("bound", help="Most cycles that it may take."),
    Column("nodes", help="Nodes of both rings."), Column("steps", help="Steps of the run."),
    Column("after", help="Steps before the migration."),
    *(Column(name, help="Options of the command.")
      for name in ("optimizer", "weights", "gradients", "transport", "source", "board")),
    Column("line", help="Cycles of a pass on the board's line, by site; 0 without a board."),
    Column("bit_exact", help="Whether final weights, state and losses have the bits of the run that stayed.")),
})


def table(downtime: Downtime) -> Table:
    """Cycles in which the job stood still."""
    columns: list[Any] = [Column(name, format=",") for name in ("read", "load", "read_back", "start")]
    return Table("cycles in which the job stood still", (
        *columns, Column("cycles", format=",", title="in all"), Column("bound", format=",.0f")), [downtime])
