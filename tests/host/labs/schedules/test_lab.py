import json

from host.cycles.estimate import Costs
from host.labs.schedules.lab import forecast, table


def test_forecast():
    """Each schedule has a row, with the serial schedule first; no pass is shorter than the time of its longer
    queue."""
    rows, log = forecast([64, 32, 32, 10], nodes=4, costs=Costs(examples=8))
    assert [row.schedule for row in rows] == ["none", "strict", "layers", "chunks:2"]
    assert all(row.cycles >= row.bound == max(row.compute, row.communicate) for row in rows)
    assert rows[0].cycles >= rows[0].compute + rows[0].communicate
    assert len({row.compute for row in rows}) == 1
    assert log[0] == f"chunks:1  {rows[2].cycles:,} cycles"
    cells = table(rows).cells
    assert len(cells) == 4
    assert cells[0][:4] == ["none", f"{rows[0].cycles:,}", "1.000", f"{rows[0].compute:,}"]
    assert cells[3][2] == f"{rows[3].cycles / rows[0].cycles:.3f}"


def test_one_layer():
    rows, log = forecast([64, 10], nodes=2, costs=Costs(examples=8))
    assert [row.schedule for row in rows] == ["none", "strict", "layers"]
    assert log == []


def test_command(tmp_path, run):
    code, printed, _ = run("lab", "schedules", "--hidden", "32", "--nodes", "2", "--output", tmp_path)
    assert code == 0
    assert "\nlayers " in printed
    assert printed.splitlines()[-1].startswith("chosen: chunks:1 ")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{name}.{kind}" for name in ("layers", "none", "strict") for kind in ("json", "png")]
    content = json.loads((tmp_path / "strict.json").read_text())
    assert {event["name"] for event in content["traceEvents"]} >= {"sum 2", "update", "gather", "backward 1"}
