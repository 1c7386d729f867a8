"""Execution traces of a run by a program, with the times that nodes have measured."""

import pathlib
from collections.abc import Sequence
from typing import Any

from host.program.schedules import Dense, Kind, Schedule
from host.reports import chakra
from sim.golden.program import Span

__all__ = ["commands_of", "write"]

#: Kinds of collectives by the first word of their names; an update of the strict schedule is each node's own.
_KINDS = {"update": chakra.Kind.ALL_REDUCE, "sum": chakra.Kind.REDUCE_SCATTER, "gather": chakra.Kind.ALL_GATHER}


def commands_of(spans: Sequence[Span], layers: Sequence[Dense], *, strict: bool) -> list[chakra.Command]:
    """Commands of a node, in the order of their starts.

    Each comes after the one before it in its queue, and after those of other queues that had ended last when it
    began. Bytes of a collective are those of its elements, whatever codec they have gone through.
    """
    lengths = {layer.number: layer.length for layer in layers}
    passes = len({span.number for span in spans}) > 1
    found: list[chakra.Command] = []
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
        found.append(chakra.Command(name=name, kind=kind, start=span.start, end=span.end, elements=elements,
                                    size=4 * elements, after=tuple(label for _, label in latest.values())))
        done.append((span, name))
    return found


def write(report: dict[str, Any], layers: Sequence[Dense], prefix: pathlib.Path, *, nodes: int) -> list[pathlib.Path]:
    """Write traces of the last step of each schedule of a report; the path of the first node's of each.

    Where there are several schedules each name ends with that of its schedule.
    """
    written = []
    for run in report["schedules"]:
        spans = [Span(*one) for one in run["timeline"]]
        strict = Schedule.parse(run["schedule"]).kind is Kind.STRICT
        ranks = [commands_of([span for span in spans if span.node == node], layers, strict=strict)
                 for node in range(nodes)]
        end = "" if len(report["schedules"]) == 1 else f"-{run['schedule'].replace(':', '-')}"
        written.append(chakra.write(ranks, prefix.with_name(prefix.name + end),
                                    note=f"gradring train, measured; compute: {report['compute']}"))
    return written
