# amaranth: UnusedElaboratable=no
import numpy as np
import pytest

from hdl.features.compute.access import request_layout
from hdl.features.compute.row_loader import RowLoader, loaded_layout
from sim.golden import summation
from sim.golden.features.compute import vector as model
from sim.payload import pack, unpack
from tests.features.compute import row_loader_model as row_loader
from tests.features.compute.vector_jobs import KINDS, MEMORY_ROWS, answers, draw, job_rows
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers
from tests.refusals import refused


def _given(lanes, generator, cases, **options):
    return Drive({"job": job_rows(cases, lanes), "response": answers(generator, cases, lanes)}, (cases, lanes),
                 **options)


def _drive(generator, lanes):
    """Draw jobs with all kinds of rows, including unlabelled rows."""
    return _given(lanes, generator, [
        draw(generator, kind, int(generator.integers(1, 12)), int(generator.integers(1, 20)), lanes=lanes, wrong=0.2,
             function=int(lanes == 8 and generator.integers(2))) for kind in KINDS], cycles=16_000)


def _model(unit, drawn, willing, ready):
    cases, lanes = drawn
    ports, offered = row_loader.trace(
        [(case.job.rows, case.job.columns, not case.job.softmax) for case in cases], lanes=lanes,
        willing=willing["job"], answered=willing["response"], asked=ready["request"], ready=ready["o"])
    reads = [read for case in cases for read in model.reads(case.job, lanes)]
    last = np.array([column == case.job.columns - 1 for case in cases for _ in range(case.job.rows)
                     for column in range(case.job.columns)])
    # Values that are output together with the last element of a row.
    ends = np.concatenate([np.stack([
        summation.maxima(case.scores.view(np.float32)).view(np.uint32).ravel(), case.labels.astype(np.uint32),
        np.full(case.job.rows, not case.job.softmax)], axis=1) for case in cases]).astype(np.uint64)
    largest, label, labelled = ends[np.cumsum(last) - last].T * last
    ones = np.uint64(0xFFFF_FFFF)
    elements = np.concatenate([case.scores.ravel() for case in cases])
    layout = loaded_layout()
    rows = pack(layout, {"element": elements, "largest": largest, "label": label, "last": last})
    bits = pack(layout, {"element": np.full(len(last), ones), "largest": last * ones, "label": labelled * ones,
                         "last": np.ones(len(last))})
    asked = pack(request_layout(MEMORY_ROWS), {name: np.array([getattr(read, name) for read in reads])
                                               for name in ("place", "row")})
    return Want(ports, {"request": asked, "o": (rows, bits)}, offered)


BENCH = UnitBench(lambda lanes: RowLoader(lanes=lanes, memory_rows=MEMORY_ROWS, sequences=lanes == 8), _model, _drive)
test_lockstep = BENCH.lockstep([(2,), (8,)])
test_parameters = refused(RowLoader, {"lanes": 4, "memory_rows": 64}, [
    ({"lanes": 1}, "Lane count must be 2, 4 or 8, not 1"),
    ({"lanes": 4.0}, "Lane count must be 2, 4 or 8, not 4.0"),
    ({"memory_rows": 1}, "Row count must be an integer of at least 2, not 1"),
])
test_offers_stand_for_all_time = offers(lambda: RowLoader(lanes=2, memory_rows=16), depth=2)


@pytest.mark.parametrize(("lanes", "labelled"), [(2, 1), (8, 1), (8, 0)])
def test_cycles(lanes, labelled):
    """The unit makes a request in every cycle, and outputs an element in every cycle except one per label."""
    generator = np.random.default_rng(lanes)
    for rows, columns in ((1, 1), (9, 1), (5, lanes), (7, lanes + 1), (3, 19)):
        case = draw(generator, "ordinary", rows, columns, lanes=lanes, function=1 - labelled)
        run = BENCH.check((lanes,), drive=_given(lanes, generator, [case]))
        requests = rows * (labelled + -(-columns // lanes))
        assert run.moves("request").tolist() == list(range(2, 2 + requests))
        assert run.moves().tolist() == [2 + row * (columns + labelled) + column + RowLoader.latency
                                        for row in range(rows) for column in range(columns)]


def test_equal_elements():
    """The first of equal elements counts as the largest, even a -0.0; a NaN does so only if it comes first."""
    generator = np.random.default_rng(1)
    nan = np.nan
    rows = np.array([[0.0, -0.0], [-0.0, 0.0], [nan, 1], [1, nan], [-1, -0.0], [nan, nan]], np.float32)
    case = draw(generator, "ordinary", 6, 2, lanes=2)
    case.scores[:] = rows.view(np.uint32)
    run = BENCH.check((2,), drive=_given(2, generator, [case]))
    loaded = unpack(loaded_layout(), run.trace["o__payload"][run.moves()])
    largest = loaded["largest"][loaded["last"] == 1].tolist()
    assert largest[:2] == [0, 0x8000_0000]
    assert largest[2:] == rows.view(np.uint32)[[2, 3, 4, 5], [0, 0, 1, 0]].tolist()
