import numpy as np
import pytest

from hdl.control.trace import TRACE_WORDS, trace_record_layout
from host.cycles.estimate import Costs
from host.driver.trace import TraceError, TraceRecord, records
from host.features.programs.program import origin_of, spans
from host.features.programs.schedules import Schedule, build
from host.models.layer_shapes import layers_of
from sim.golden.features.programs.program import timeline
from tests.refusals import refuses

RECORDS = TRACE_WORDS // 2
PROGRAM = build(Schedule.parse("strict"), layers_of([64, 32, 32, 10]), nodes=2, costs=Costs(examples=8), staged=4096)


def memory_of(node_spans, *, since, offset, noise):
    """Contents of the trace memory of a node that has executed the given spans, and its trace pointer."""
    tags = {(queue, index): command.task.place for queue, commands in enumerate(PROGRAM.queues)
            for index, command in enumerate(commands)}
    events = sorted((time, end, span.queue, tags[span.queue, span.place])
                    for span in node_spans for end, time in ((0, span.start), (1, span.end)))
    words = noise.integers(0, 1 << 32, TRACE_WORDS, dtype=np.uint32)
    for number, (time, end, queue, tag) in enumerate(events):
        value = trace_record_layout().const({"tag": tag, "end": end, "queue": queue,
                                             "time": (time + offset) % (1 << 32)}).as_bits()
        index = 2 * ((since + number) % RECORDS)
        words[index:index + 2] = value & 0xFFFF_FFFF, value >> 32
    return words, (since + len(events)) % (1 << 32)


@pytest.mark.parametrize(("since", "offset"), [(0, 0), (200, 12_345), (5_000, (1 << 32) - 3_000), ((1 << 32) - 7, 9)])
def test_round_trip(since, offset):
    """Spans are recovered from the trace, even if the trace memory or the clock has wrapped around."""
    expected = timeline(PROGRAM.timed(), passes=3, nodes=2)
    traces = []
    for node in range(2):
        words, pointer = memory_of([span for span in expected if span.node == node], since=since, offset=offset,
                                   noise=np.random.default_rng(node))
        traces.append(records(words, pointer, since))
    origin = origin_of(traces)
    assert origin == offset % (1 << 32)
    read = [span for node, trace in enumerate(traces) for span in spans(trace, PROGRAM, node=node, origin=origin)]
    assert sorted(read, key=lambda span: (span.start, span.node, span.queue)) == expected


def test_too_many():
    refuses("Trace must have at most 256 records, not 300: run fewer passes at a time", records,
            np.zeros(TRACE_WORDS, dtype=np.uint32), 310, 10, error=TraceError)


def test_other_programs():
    first = TraceRecord(0, 0, False, 5)
    refuses("Trace must have start and end of command 0 of pass 0 in queue 0, not TraceRecord(queue=0, tag=0, "
            "end=False, time=5, version=0) and TraceRecord(queue=0, tag=1, end=True, time=9, version=0)", spans,
            [first, TraceRecord(0, 1, True, 9)], PROGRAM, node=0, origin=0, error=TraceError)
    refuses("Trace must have the end of every command, and TraceRecord(queue=0, tag=0, end=False, time=5, version=0) "
            "has none", spans, [first], PROGRAM, node=0, origin=0, error=TraceError)
    assert spans([], PROGRAM, node=0, origin=origin_of([[], []])) == []
