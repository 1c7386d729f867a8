"""Random jobs for the vector unit, answers to its reads, and checks of its reads and writes."""

import dataclasses

import numpy as np

from hdl.features.compute.access import request_layout, response_layout, write_layout
from hdl.features.compute.jobs import vector_job_layout
from hdl.features.compute.layer_list import PADDING
from sim.golden.features.compute import vector as model
from sim.payload import pack, unpack
from sim.verilated.vectors import Feed
from tests.features.compute.memories import compare_accesses

MEMORY_ROWS = 4096
#: Latency in cycles from a request to its answer, if memories never stall.
ANSWER = 5
KINDS = ("ordinary", "wide", "equal", "corners", "bits")

_CORNERS = np.array([0, -0.0, 1e-45, -1e-45, 1, -87.5, -10000, 3e38, -3e38, 1.18e-38, 88, np.nan, np.inf, -np.inf],
                    np.float32)


@dataclasses.dataclass(frozen=True)
class Case:
    """A job of the vector unit, its scores as bit patterns, and its labels."""

    job: model.Job
    scores: np.ndarray
    labels: np.ndarray


def draw_scores(generator, kind, rows, columns):
    """Draw scores of a kind: near zero, of all magnitudes, equal in a row, special values, or random bits."""
    if kind == "bits":
        return generator.integers(1 << 32, size=(rows, columns), dtype=np.uint32)
    if kind == "corners":
        values = generator.choice(_CORNERS[:11] if generator.random() < 0.5 else _CORNERS, (rows, columns))
    elif kind == "equal":
        same = generator.choice(np.array([-10000, 0, -0.0, 3], np.float32), (rows, 1))
        values = np.broadcast_to(same, (rows, columns))
    else:
        values = generator.standard_normal((rows, columns)) * (3 if kind == "ordinary" else 60)
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def draw(generator, kind, rows, columns, *, lanes, wrong=0.0, function=0):
    """Draw a job at random addresses; its rows do not overlap if it has at most 64 columns."""
    def place(extent):
        return int(generator.integers(4)), int(generator.integers(MEMORY_ROWS - extent))

    width = -(-min(columns, 64) // lanes)
    strides = {name: width + int(generator.integers(3)) for name in ("stride_source", "stride_target")}
    apart = int(generator.integers(1, 7))
    labels = generator.integers(max(columns, 1), size=rows)
    far = generator.choice(np.array([columns, columns + 1, 64, 1 << 16, PADDING]), rows)
    labels = np.where(generator.random(rows) < wrong, np.maximum(far, columns), labels)
    job = model.Job(
        rows=rows, columns=columns, source=place(rows * strides["stride_source"]), loss=place(1),
        labels=place(rows * apart + 1), target=place(rows * strides["stride_target"]), function=function,
        labels_lane=int(generator.integers(lanes)), loss_lane=int(generator.integers(lanes)), stride_labels=apart,
        **strides)
    return Case(job, draw_scores(generator, kind, rows, columns), labels)


def job_rows(cases, lanes):
    layout = vector_job_layout(MEMORY_ROWS, lanes)
    jobs = [case.job for case in cases]
    values = {}
    for name in layout.members:
        column = [getattr(job, name) for job in jobs]
        if name in ("source", "labels", "target", "loss"):
            places, rows = zip(*column, strict=True)
            values[name] = {"place": np.array(places), "row": np.array(rows)}
        else:
            values[name] = np.array(column)
    return pack(layout, values)


def answers(generator, cases, lanes):
    """Payloads of ``response``: answers to the reads of every job, with random bits in unused lanes."""
    beats = []
    for case in cases:
        for read in model.reads(case.job, lanes):
            row = generator.integers(1 << 32, size=lanes, dtype=np.uint32)
            if read.column < 0:
                row[read.lane] = case.labels[read.matrix_row]
            else:
                scores = case.scores[read.matrix_row, read.column:read.column + lanes]
                row[:len(scores)] = scores
            beats.append(row)
    elements = np.array(beats, np.uint32).reshape(-1, lanes)
    return pack(response_layout(lanes), {"elements": elements})


def result_of(case, *, sequences):
    """Expected result of a job: a softmax as bit patterns, or the loss and gradient of labelled rows."""
    if case.job.softmax:
        return model.CrossEntropy(0, model.softmax(case.scores), False)
    return model.cross_entropy(case.scores, case.labels, sequences=sequences)


def run(unit, cases, *, lanes, columns, cycles, seed=1, willing=None, ready=True, settled=1, before=None,
        sequences=False):
    """Run jobs in sequence, compare reads and writes with the model, and return the trace of all ports.

    ``willing`` and ``ready`` are the stall patterns of input and output streams, keyed by name. ``before`` may give a
    job to run first and the number of cycles after which a reset ends it.
    """
    legal = [case for case in cases if case.job.legal(columns, sequences=sequences)]
    generator = np.random.default_rng(seed)
    willing = willing or {}
    ready = {"request": True, "write": True} if ready is True else ready
    unit.reset()
    if before:
        case, cut = before
        unit.lockstep(
            sources={"job": Feed(job_rows([case], lanes)), "response": Feed(answers(generator, [case], lanes))},
            sinks=ready, inputs={"settled": 1}, cycles=cut, seed=seed)
        unit.reset()
    ports = unit.lockstep(
        sources={"job": Feed(job_rows(cases, lanes), willing.get("job")),
                 "response": Feed(answers(generator, legal, lanes), willing.get("response"))},
        sinks=ready, inputs={"settled": settled}, cycles=cycles, seed=seed)
    done = np.flatnonzero(ports["done"])
    assert len(done) == len(cases), f"{len(done)} of {len(cases)} jobs in {cycles} cycles, {seed=}"

    moved = (ports["request__valid"] & ports["request__ready"]) == 1
    asked = unpack(request_layout(MEMORY_ROWS), ports["request__payload"][moved])
    results = {id(case): result_of(case, sequences=sequences) for case in legal}
    moved = (ports["write__valid"] & ports["write__ready"]) == 1
    written = unpack(write_layout(MEMORY_ROWS, lanes), ports["write__payload"][moved])
    compare_accesses(
        asked, written, [read for case in legal for read in model.reads(case.job, lanes)],
        [write for case in legal for write in model.writes(case.job, results[id(case)], lanes)], lanes=lanes,
        note=f"{seed=}")
    bad = [id(case) not in results or results[id(case)].wrong for case in cases]
    assert ports["bad"][done].tolist() == bad, f"{seed=}"
    assert not ports["bad"][ports["done"] == 0].any()
    return ports, done
