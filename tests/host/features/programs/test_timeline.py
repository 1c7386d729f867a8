import itertools
import json

import pytest

from host.cycles.estimate import Costs
from host.features.programs.schedules import Schedule, build
from host.features.programs.timeline import busy, draw, trace, write_trace
from host.models.layer_shapes import layers_of
from sim.golden.features.programs.program import Span, timeline
from tests.refusals import refuses


@pytest.fixture(scope="module")
def spans():
    program = build(Schedule.parse("strict"), layers_of([64, 32, 32, 10]), nodes=3, costs=Costs(examples=8),
                    staged=4096)
    return timeline(program.timed(), nodes=3, passes=2)


def test_trace(spans, tmp_path):
    """The trace has each span once, in the row of its node and queue, and spans in a row do not overlap."""
    write_trace(spans, tmp_path / "timeline.json")
    content = json.loads((tmp_path / "timeline.json").read_text())
    assert content == trace(spans)
    assert content["otherData"] == {"unit": "cycles, as microseconds", "compute": "modelled"}
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in content["traceEvents"]
             if event["name"] == "thread_name"}
    assert names == {(node, queue): ("compute", "communicate")[queue] for node in range(3) for queue in range(2)}
    events = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert [(event["pid"], event["tid"], event["name"], event["ts"], event["ts"] + event["dur"],
             event["args"]["pass"]) for event in events] == [
        (span.node, span.queue, span.name, span.start, span.end, span.number) for span in spans]
    for row in names:
        intervals = sorted((event["ts"], event["dur"]) for event in events if (event["pid"], event["tid"]) == row)
        assert all(start + length <= after for (start, length), (after, _) in itertools.pairwise(intervals))


def test_busy():
    assert busy([Span(0, 1, "a", 0, 5), Span(0, 1, "b", 7, 9), Span(2, 0, "c", 1, 1)]) == {(0, 1): 7, (2, 0): 0}


def test_picture(spans, tmp_path, monkeypatch):
    """The picture has a bar for each span, with its start and length, and labels only bars that are wide enough."""
    from matplotlib.axes import Axes

    bars, texts = [], []

    def bar(axes, ranges, yrange, **options):
        bars.append((round(yrange[0] + yrange[1] / 2), *ranges[0]))
        return original(axes, ranges, yrange, **options)

    original, text = Axes.broken_barh, Axes.text
    monkeypatch.setattr(Axes, "broken_barh", bar)
    monkeypatch.setattr(Axes, "text", lambda *values, **options: texts.append(values[3]) or text(*values, **options))
    draw(spans, tmp_path / "timeline.png", title="three nodes")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert bars == [(2 * span.node + span.queue, span.start, span.end - span.start) for span in spans]

    texts.clear()
    draw([Span(0, 0, "backward 3", 0, 900), Span(0, 1, "latch", 0, 2), Span(0, 1, "update 3", 900, 930)],
         tmp_path / "timeline.png", title="one node")
    assert texts == ["backward 3", "3"]


def test_nothing_to_draw(tmp_path):
    refuses("Spans must be at least one, not none", draw, [], tmp_path / "timeline.png", title="nothing")
