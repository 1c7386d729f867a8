"""Timeline of a program as a trace and as a picture: when each queue of each node is busy.

The trace is in the JSON format of Chrome's tracing, which https://ui.perfetto.dev opens. Each node is shown as a
process, each queue as a thread, and each cycle as a microsecond.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

from host.output import write_json
from host.reports.style import COLOURS, INK, picture, show_thousands
from sim.golden.features.programs.program import Span

__all__ = ["QUEUES", "busy", "draw", "trace", "write_trace"]

#: Names of the queues.
QUEUES = ("compute", "communicate", "move")

#: Colours of commands, keyed by the first word of their names; other commands take their queue's colour.
_COLOURS = dict(zip(("backward", "sum", "update", "forward", "gather"), COLOURS, strict=False))
_OTHERS = ("#8fa3b8", "#c98b96", "#b5a7d6")
#: Height of a queue's bar in the picture, where 1 would leave no gap to the next queue.
_HEIGHT = 0.82
#: Width of a letter in inches.
_LETTER = 0.075


def busy(spans: Sequence[Span]) -> dict[tuple[int, int], int]:
    """Count the cycles in which each queue of each node is running a command."""
    cycles: dict[tuple[int, int], int] = {}
    for span in spans:
        key = (span.node, span.queue)
        cycles[key] = cycles.get(key, 0) + span.end - span.start
    return cycles


def trace(spans: Sequence[Span], *, compute: str = "modelled") -> dict[str, Any]:
    """Build the trace; ``compute`` is the source of computation times, ``modelled`` or ``engine``."""
    names = [{"ph": "M", "name": "process_name", "pid": node, "tid": 0, "args": {"name": f"node {node}"}}
             for node in sorted({span.node for span in spans})]
    names += [{"ph": "M", "name": "thread_name", "pid": node, "tid": queue, "args": {"name": QUEUES[queue]}}
              for node, queue in sorted(busy(spans))]
    events = [{"ph": "X", "name": span.name, "cat": QUEUES[span.queue], "pid": span.node, "tid": span.queue,
               "ts": span.start, "dur": span.end - span.start, "args": {"pass": span.number}} for span in spans]
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ns",
            "otherData": {"unit": "cycles, as microseconds", "compute": compute}}


def write_trace(spans: Sequence[Span], path: pathlib.Path, *, compute: str = "modelled") -> None:
    """Write the spans as a trace file; see :func:`trace`."""
    write_json(path, trace(spans, compute=compute))


def draw(spans: Sequence[Span], path: pathlib.Path, *, title: str, note: str = "compute: modelled") -> None:
    """Draw one row per queue of each node, with a title and a note about the computation.

    Raises
    ------
    ValueError
        ``spans`` is empty.
    """
    if not spans:
        raise ValueError("Spans must be at least one, not none")
    rows = sorted(busy(spans))
    end = max(span.end for span in spans)
    kinds = dict.fromkeys(span.name.split(" ")[0] for span in spans)
    with picture(path, size=(13, 1.7 + 0.36 * len(rows)), title=title, note=note) as (axes,):
        from matplotlib.patches import Patch

        axes.set_xlim(0, end or 1)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks(range(len(rows)), [f"node {node} {QUEUES[queue]}" for node, queue in rows])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("cycle")
        show_thousands(axes.xaxis)
        room = 10.5 / (end or 1)  # approximate inches per cycle
        for span in spans:
            row = rows.index((span.node, span.queue))
            axes.broken_barh([(span.start, span.end - span.start)], (row - _HEIGHT / 2, _HEIGHT), linewidth=0.5,
                             facecolor=_COLOURS.get(span.name.split(" ")[0], _OTHERS[span.queue]), edgecolor="white")
            if text := _label(span, room):
                axes.text((span.start + span.end) / 2, row, text, ha="center", va="center", fontsize=7.5,
                          color="white")
        for row, (node, _) in enumerate(rows):
            if row and node != rows[row - 1][0]:
                axes.axhline(row - 0.5, color=INK, linewidth=0.6)
        axes.legend(handles=[Patch(color=_COLOURS[kind], label=kind) for kind in _COLOURS if kind in kinds],
                    loc="lower right", bbox_to_anchor=(1, 1), ncols=len(_COLOURS), fontsize=9)


def _label(span: Span, room: float) -> str:
    """Return the longest label that fits: the full name, its number only, or nothing."""
    width = (span.end - span.start) * room
    return next((text for text in (span.name, span.name.split(" ")[-1]) if len(text) * _LETTER <= width), "")
