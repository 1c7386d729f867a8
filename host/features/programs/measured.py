"""Write the measured schedules of a training run as timelines and execution traces."""

import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

from host.features.programs import chakra
from host.features.programs.execution import OVERLAPS
from host.features.programs.schedules import Kind, Schedule
from host.features.programs.timeline import draw, write_trace
from host.models.layer_shapes import Dense
from sim.golden.features.programs.program import Span

__all__ = ["commands_of", "timeline_names", "write", "write_traces"]

#: Largest chunk size, in layers, that a run may compare.
_MAX_CHUNK = 64

#: Kinds of collectives, keyed by the first word of the name. The strict schedule's update is local to each node.
_KINDS = {"update": chakra.Kind.ALL_REDUCE, "sum": chakra.Kind.REDUCE_SCATTER, "gather": chakra.Kind.ALL_GATHER}

def _ending(schedule: str) -> str:
    """Return the suffix of a schedule's file names, which is needed if several schedules are written."""
    return f"-{schedule.replace(':', '-')}"


def timeline_names() -> list[str]:
    """Return the names of all files that :func:`write` can create."""
    chunks = itertools.takewhile(lambda size: size <= _MAX_CHUNK, (2 << n for n in itertools.count()))
    endings = ["", *map(_ending, (*OVERLAPS, *(f"chunks:{size}" for size in chunks)))]
    return [f"timeline{ending}.{kind}" for ending in endings for kind in ("json", "png")]


def write(report: dict[str, Any], directory: pathlib.Path, *, nodes: int) -> list[pathlib.Path]:
    """Write the timeline of each run's last step as a trace and a picture, and return the paths.

    A single run gives timeline.json and timeline.png. For several runs, the schedule is appended to each name.
    """
    paths = []
    for run in report["schedules"]:
        if run["timeline"] is None:
            continue
        spans = [Span(*entry) for entry in run["timeline"]]
        end = "" if len(report["schedules"]) == 1 else _ending(run["schedule"])
        trace, picture = directory / f"timeline{end}.json", directory / f"timeline{end}.png"
        write_trace(spans, trace, compute=report["compute"])
        draw(spans, picture, title=f"{nodes} nodes, {run['schedule']}: {max(entry.end for entry in spans):,} cycles",
             note=f"measured; compute: {report['compute']}")
        paths += [trace, picture]
    return paths


def commands_of(spans: Sequence[Span], layers: Sequence[Dense], *, strict: bool) -> list[chakra.Command]:
    """Return a node's commands, sorted by start.

    Each command depends on the previous one in its queue and, for every other queue, on the last command that had
    ended when it started. The size of a collective is the size of its unencoded elements in bytes.
    """
    lengths = {layer.number: layer.length for layer in layers}
    passes = len({span.number for span in spans}) > 1
    commands: list[chakra.Command] = []
    done: list[tuple[Span, str]] = []
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        what, _, numbers = span.name.partition(" ")
        kind = chakra.Kind.COMPUTE if strict and what == "update" else _KINDS.get(what, chakra.Kind.COMPUTE)
        elements = 0
        if kind is not chakra.Kind.COMPUTE:
            chosen = [int(number) for number in numbers.split("-")] if numbers else [max(lengths), min(lengths)]
            elements = sum(lengths[number] for number in range(min(chosen), max(chosen) + 1))
        name = f"{span.name}, pass {span.number}" if passes else span.name
        latest: dict[int, tuple[Span, str]] = {}
        for other, label in done:
            if other.end <= span.start and (other.queue not in latest or latest[other.queue][0].end <= other.end):
                latest[other.queue] = other, label
        commands.append(chakra.Command(name=name, kind=kind, start=span.start, end=span.end, elements=elements,
                                       size=4 * elements, after=tuple(label for _, label in latest.values())))
        done.append((span, name))
    return commands


def write_traces(report: dict[str, Any], layers: Sequence[Dense], prefix: pathlib.Path, *,
                 nodes: int) -> list[pathlib.Path]:
    """Write traces of the last step of each schedule in a report, and return each schedule's first path.

    With several schedules, the schedule is appended to each name. A schedule without a timeline has no trace: golden
    nodes do not model all collectives on a single node, or on more nodes than a vector has groups.
    """
    written = []
    for run in report["schedules"]:
        if run["timeline"] is None:
            continue
        spans = [Span(*fields) for fields in run["timeline"]]
        strict = Schedule.parse(run["schedule"]).kind is Kind.STRICT
        ranks = [commands_of([span for span in spans if span.node == node], layers, strict=strict)
                 for node in range(nodes)]
        end = "" if len(report["schedules"]) == 1 else _ending(run["schedule"])
        written.append(chakra.write(ranks, prefix.with_name(prefix.name + end),
                                    note=f"gradring train, measured; compute: {report['compute']}"))
    return written
