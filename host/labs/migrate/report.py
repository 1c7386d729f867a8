"""Report of a migration: its schema, and a table of the cycles in which the job stood still."""

from host.columns import Column, Table, columns_of
from host.migration.migrate import Downtime
from host.schema import Schema

__all__ = ["SCHEMA", "table"]

#: Report of a migration.
SCHEMA = Schema("gradring.migration", 1, columns_of(
    Downtime, "cycles bound nodes steps after optimizer weights gradients transport source board line bit_exact"))


def table(downtime: Downtime) -> Table:
    """Cycles in which the job stood still."""
    return Table("cycles in which the job stood still", columns_of(
        "read:, load:, read_back:, start:,", Column("cycles", ",", "in all"), "bound:,.0f"), [downtime])
