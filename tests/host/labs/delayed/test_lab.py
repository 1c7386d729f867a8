# amaranth: UnusedElaboratable=no
"""Cycles of overlapping passes: rows of the lab for a small network, and the table made from rows."""

from host.cycles.estimate import Costs
from host.features.programs.schedules import Kind, Schedule
from host.labs.delayed.lab import Bench, Row, table
from host.models.layer_shapes import layers_of
from tests.host import rings

LAYERS = layers_of([12, 6, 6, 5])


def test_rows():
    """Delayed layers use weights that are one update old, and no pass takes fewer cycles than its bound."""
    config = rings.CONFIGS["wide"]
    with rings.open_nodes(2, config=config, host_port=False) as (ring, _):
        bench = Bench(ring, LAYERS, Costs(examples=4, macs=1), distance=1024)
        rows = [bench.measure(schedule) for schedule in (
            Schedule(Kind.NONE), *(Schedule(Kind.DELAYED, behind) for behind in (0, 1, 3)))]
    assert [row.schedule for row in rows] == ["none", "delayed:0", "delayed:1", "delayed:3"]
    assert [row.versions for row in rows] == [[], [0, 0, 0], [1, 0, 0], [1, 1, 1]]
    assert [row.commands for row in rows] == [2, 4, 4, 4]
    for row in rows:
        assert row.cycles >= max(row.compute, row.communicate)
    assert rows[3].cycles < rows[1].cycles < rows[0].cycles


def test_table():
    rows = [Row("none", 2000.0, 900.0, 1000.0, 2, []), Row("delayed:1", 1100.0, 900.0, 1076.0, 3, [1, 0])]
    assert table(rows, compute="modelled").cells == [
        ["none", "2,000", "1.000", "900", "1,000", "1.969", "-"],
        ["delayed:1", "1,100", "0.550", "900", "1,076", "1.000", "1, 0"]]
