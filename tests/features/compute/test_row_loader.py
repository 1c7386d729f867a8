# amaranth: UnusedElaboratable=no
import functools

import numpy as np
import pytest

from hdl.features.compute.access import request_layout
from hdl.features.compute.row_loader import RowLoader, loaded_layout
from sim.golden import summation
from sim.golden.features.compute import vector as model
from sim.payload import unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.features.compute import row_loader_model as row_loader
from tests.features.compute.vector_jobs import KINDS, MEMORY_ROWS, answers, draw, job_rows
from tests.hdl.unit_bench import offers, sinks
from tests.refusals import refused


@functools.cache
def _loader(lanes):
    return Unit(RowLoader(lanes=lanes, memory_rows=MEMORY_ROWS, sequences=lanes == 8))


def _run(lanes, cases, *, length, seed, willing=None, response=None, ready=True, request=True):
    unit = _loader(lanes)
    unit.reset()
    given = answers(np.random.default_rng(seed), cases, lanes)
    return unit.lockstep(
        sources={"job": Feed(job_rows(cases, lanes), willing), "response": Feed(given, response)},
        sinks={"request": request, "o": ready}, cycles=length, seed=seed)


def _check(ports, cases, lanes, *, seed):
    moved = (ports["request__valid"] & ports["request__ready"]) == 1
    asked = unpack(request_layout(MEMORY_ROWS), ports["request__payload"][moved])
    want = [read for case in cases for read in model.reads(case.job, lanes)]
    assert asked["place"].tolist() == [read.place for read in want], f"{seed=}"
    assert asked["row"].tolist() == [read.row for read in want], f"{seed=}"
    moved = (ports["o__valid"] & ports["o__ready"]) == 1
    got = unpack(loaded_layout(), ports["o__payload"][moved])
    np.testing.assert_array_equal(got["element"], np.concatenate([case.scores.ravel() for case in cases]), f"{seed=}")
    last = got["last"] == 1
    ends = [column == case.job.columns - 1 for case in cases for _ in range(case.job.rows)
            for column in range(case.job.columns)]
    assert last.tolist() == ends, f"{seed=}"
    labels = [-1 if case.job.softmax else label for case in cases for label in case.labels.tolist()]
    assert [found for found, label in zip(got["label"][last], labels, strict=True) if label >= 0] == [
        label for label in labels if label >= 0], f"{seed=}"
    with np.errstate(invalid="ignore"):
        largest = [summation.maxima(case.scores.view(np.float32)).view(np.uint32).ravel() for case in cases]
    np.testing.assert_array_equal(got["largest"][last], np.concatenate(largest), f"{seed=}")
    return np.flatnonzero(moved)


def _follow(ports, cases, lanes, *, seed, **patterns):
    """Compare every cycle with the model."""
    want = row_loader.trace([(case.job.rows, case.job.columns, not case.job.softmax) for case in cases],
                            lanes=lanes, **patterns)
    taken = {name: ports[f"{name}__valid"] & ports[f"{name}__ready"] for name in ("job", "response")}
    for name, got in (("job_taken", taken["job"]), ("response_taken", taken["response"]),
                      ("request_valid", ports["request__valid"]), ("o_valid", ports["o__valid"])):
        np.testing.assert_array_equal(got == 1, getattr(want, name), f"{name}, {seed=}")


test_parameters = refused(RowLoader, {"lanes": 4, "memory_rows": 64}, [
    ({"lanes": 1}, "Lane count must be 2, 4 or 8, not 1"),
    ({"lanes": 4.0}, "Lane count must be 2, 4 or 8, not 4.0"),
    ({"memory_rows": 1}, "Row count must be an integer of at least 2, not 1"),
])
test_offers_stand_for_all_time = offers(lambda: RowLoader(lanes=2, memory_rows=16), depth=2)


@pytest.mark.parametrize("lanes", [2, 8])
@pytest.mark.parametrize("source", STALLS)
def test_stalls(lanes, source):
    """Elements, labels, largest elements and every cycle, of all kinds of rows under stalls on all sides."""
    for seed, sink in sinks(source):
        generator = np.random.default_rng(seed)
        cases = [draw(generator, kind, int(generator.integers(1, 12)), int(generator.integers(1, 20)), lanes=lanes,
                      wrong=0.2, function=int(lanes == 8 and generator.integers(2))) for kind in KINDS]
        length = 16_000
        patterns = [stall_array(kind, length, seed=seed + place) for place, kind in enumerate(
            (source, source, sink, sink))]
        ports = _run(lanes, cases, length=length, seed=seed, willing=patterns[0], response=patterns[1],
                     ready=patterns[2], request=patterns[3])
        _check(ports, cases, lanes, seed=seed)
        _follow(ports, cases, lanes, seed=seed, willing=patterns[0], answered=patterns[1], ready=patterns[2],
                asked=patterns[3])


@pytest.mark.parametrize(("lanes", "labelled"), [(2, 1), (8, 1), (8, 0)])
def test_cycles(lanes, labelled):
    """A request in every cycle; an element in every cycle, but for one of each label."""
    generator = np.random.default_rng(lanes)
    for rows, columns in ((1, 1), (9, 1), (5, lanes), (7, lanes + 1), (3, 19)):
        case = draw(generator, "ordinary", rows, columns, lanes=lanes, function=1 - labelled)
        length = 40 + rows * (columns + 1)
        answered = 12
        ports = _run(lanes, [case], length=length, seed=1, response=np.arange(length) >= answered)
        moved = _check(ports, [case], lanes, seed=1)
        requests = rows * (labelled + -(-columns // lanes))
        assert np.flatnonzero(ports["request__valid"]).tolist() == list(range(2, 2 + requests))
        assert moved.tolist() == [answered + row * (columns + labelled) + labelled + column + RowLoader.latency
                                  for row in range(rows) for column in range(columns)]


def test_equal_elements():
    """The first of equal elements is the largest one, a negative zero too, and a NaN if it comes first."""
    generator = np.random.default_rng(1)
    nan = np.nan
    rows = np.array([[0.0, -0.0], [-0.0, 0.0], [nan, 1], [1, nan], [-1, -0.0], [nan, nan]], np.float32)
    case = draw(generator, "ordinary", 6, 2, lanes=2)
    case.scores[:] = rows.view(np.uint32)
    ports = _run(2, [case], length=80, seed=1)
    _check(ports, [case], 2, seed=1)
    found = unpack(loaded_layout(), ports["o__payload"][ports["o__valid"] == 1])
    largest = found["largest"][found["last"] == 1].tolist()
    assert largest[:2] == [0, 0x8000_0000]
    assert largest[2:] == rows.view(np.uint32)[[2, 3, 4, 5], [0, 0, 1, 0]].tolist()
