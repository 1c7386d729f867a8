import dataclasses
import json

import pytest

from host.columns import record
from host.cycles.estimate import Costs
from host.features.programs.measured import write
from host.features.programs.schedules import Schedule, build
from host.models.layer_shapes import layers_of
from host.reports.summary import SCHEDULES, schedules_of
from host.training.record import Step, Training, TrainingConfig
from sim.golden.features.programs.program import makespan, timeline

LAYERS = layers_of([64, 32, 10])
CYCLES = {"none": (4000, 4100), "layers": (3000, 3100), "chunks:2": (3500, 3200)}


def outcome(name, *, first="layers"):
    """Training run of two steps, the first of which uses the schedule ``first``, and the modelled makespan of the
    program."""
    program = build(Schedule.parse(name), LAYERS, nodes=2, costs=Costs(examples=8), staged=4096)
    spans = timeline(program.timed(), nodes=2)
    steps = [Step(number=number, epoch=1, loss=1.0, cycles=cycles, bound=1, scatter_cycles=1, scatter_bound=1,
                  words_sent=1, words_dense=1, density=[], schedule=schedule, modelled_cycles=3200,
                  compute_cycles=1000, communicate_cycles=2000)
             for number, (schedule, cycles) in enumerate(zip((first, name), CYCLES[name], strict=True), start=1)]
    return Training(nodes=2, parameters=2432, steps=steps, bit_exact=True, search=["chunks:1  3,000 cycles"] * (
        first != name), timeline=[list(dataclasses.astuple(span)) for span in spans]), makespan(spans)


def report(*names, first=None):
    runs = [(TrainingConfig(overlap=name), outcome(name, first=first or name)[0]) for name in names]
    return {"compute": "modelled", "modelled": False, "schedules": [record(SCHEDULES, run) for run in runs]}


def test_table():
    table, = schedules_of(report("none", "layers"))
    assert table.title == "Cycles of a step, by schedule; compute: modelled, 16 multiply-adds per cycle"
    assert table.headings == ["schedule", "cycles", "of serial", "of modelled", "compute", "communicate", "bound"]
    assert table.cells == [["none", "4,050", "1.000", "1.266", "1,000", "2,000", "2,000"],
                           ["layers", "3,050", "0.753", "0.953", "1,000", "2,000", "2,000"]]
    assert schedules_of({"compute": "host", "modelled": False, "schedules": []}) == []


def test_search():
    """Steps in which a search tries a schedule are not counted, and the log of the search is kept."""
    content = report("chunks:2", first="layers")
    assert schedules_of(content)[0].cells == [["chunks:2", "3,200", "-", "1.000", "1,000", "2,000", "2,000"]]
    assert content["schedules"][0]["search"] == ["chunks:1  3,000 cycles"] * 1


@pytest.mark.parametrize(("names", "files"), [
    (("chunks:2",), ["timeline.json", "timeline.png"]),
    (("none", "chunks:2"), ["timeline-none.json", "timeline-none.png", "timeline-chunks-2.json",
                            "timeline-chunks-2.png"])])
def test_timelines(tmp_path, names, files):
    assert [path.name for path in write(report(*names), tmp_path, nodes=2)] == files
    last = json.loads((tmp_path / files[-2]).read_text())
    assert last["otherData"]["compute"] == "modelled"
    ends = [event["ts"] + event["dur"] for event in last["traceEvents"] if event["ph"] == "X"]
    assert max(ends) == outcome("chunks:2")[1]
    assert (tmp_path / files[-1]).read_bytes().startswith(b"\x89PNG")
