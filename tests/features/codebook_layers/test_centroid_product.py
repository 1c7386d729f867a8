# amaranth: UnusedElaboratable=no
import dataclasses
import functools

import numpy as np
import pytest

from hdl.features.codebook.format import CentroidTable
from hdl.features.codebook_layers.centroid_product import CentroidProduct, Job, column_layout
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.streams.stream import word_layout
from sim.golden import summation
from sim.golden.features.codebook_layers import centroid_product as model
from sim.payload import pack
from sim.verilated.vectors import Feed
from tests.features.compute.terms import KINDS, draw
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers
from tests.loaded import Loaded
from tests.refusals import refused

#: Number of lanes, centroids and DSP blocks of the simulated units.
UNITS = ((4, 16, 4), (1, 4, 1))


@dataclasses.dataclass(kw_only=True)
class Case:
    """A job with its indices (outputs, columns), inputs (examples, columns), and starts or gradients.

    Starts and gradients have the shape (examples, outputs).
    """

    job: Job
    indices: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((1, 0), np.int64))
    x: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((SLOTS, 0), np.float32))
    rows: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 1), np.float32))


def _words(numbers):
    return np.ascontiguousarray(numbers, np.float32).view(np.uint32)


def _numbers(generator, kind, *shape):
    return draw(generator, kind, int(np.prod(shape))).astype(np.uint32).view(np.float32).reshape(shape)


def _case(generator, job, kind, lanes, centroids, columns):
    if job == Job.TOTAL:
        return Case(job=job)
    return Case(job=job, indices=generator.integers(0, centroids, (lanes, columns)),
                x=_numbers(generator, kind, SLOTS, columns), rows=_numbers(generator, kind, SLOTS, lanes))


def _rows(rows):
    """Convert rows to port words; with a single lane, each row becomes a scalar."""
    return _words(rows) if rows.shape[1] > 1 else _words(rows)[:, 0]


def _columns(case, lanes, bits):
    """Input beats of a job: one beat per example for each column."""
    count = case.x.shape[1]
    return pack(column_layout(lanes, bits), {
        "input": _words(case.x.T).ravel(), "indices": np.repeat(case.indices.T, SLOTS, axis=0),
        "last": np.repeat(np.arange(count) == count - 1, SLOTS)})


def _loaded(unit_of, cases, table, **options):
    """Load a table into the unit, then feed it jobs."""
    lanes, centroids, _ = unit_of
    active = [case for case in cases if case.job != Job.TOTAL]
    unit = BENCH.unit(*unit_of)
    unit.load = pack(word_layout(), {"data": _words(table), "last": np.arange(len(table)) == len(table) - 1})
    beats = {"job": np.array([case.job for case in cases], np.uint32),
             "i": np.concatenate([_columns(case, lanes, (centroids - 1).bit_length()) for case in active]),
             "rows": _rows(np.concatenate([case.rows for case in active]))}
    return Drive(beats | unit.no_more(), (cases, table, lanes), **options)


def _expected(cases, table, lanes):
    golden = model.Lanes(table=table, lanes=lanes)
    outputs, gradients = [], []
    with np.errstate(all="ignore"):
        for case in cases:
            match case.job:
                case Job.PRODUCT:
                    outputs.append(golden.product(case.indices, case.x, case.rows))
                case Job.GRADIENT:
                    golden.gradient(case.indices, case.x, case.rows)
                case Job.TOTAL:
                    gradients.append(golden.total())
    return [_words(np.concatenate(parts)).ravel() for parts in (outputs, gradients)]


def _model(unit, drawn, willing, ready):
    outputs, gradients = _expected(*drawn)
    _, table, lanes = drawn
    words = {"data": gradients, "last": np.arange(1, len(gradients) + 1) % len(table) == 0}
    return Want({"error": np.zeros(len(ready["o"]), bool)}, {
        "o": outputs.reshape(-1, lanes) if lanes > 1 else outputs, "gradients": pack(word_layout(), words)})


def _drive(generator, lanes, centroids, dsps, count=12):
    """Draw jobs in random order, all with numbers of the same kind."""
    kind = str(generator.choice(KINDS))
    jobs = [*generator.integers(0, 3, count - 5), Job.PRODUCT, Job.GRADIENT, Job.TOTAL, Job.PRODUCT, Job.TOTAL]
    cases = [_case(generator, Job(job), kind, lanes, centroids, int(generator.integers(1, 12))) for job in jobs]
    return _loaded((lanes, centroids, dsps), cases, _numbers(generator, kind, centroids))


BENCH = UnitBench(
    lambda lanes, centroids, dsps: CentroidProduct(
        table=CentroidTable(centroids=centroids, loaded=True), lanes=lanes, dsps=dsps), _model, _drive,
    simulate=lambda component, *_: Loaded(component, stream="table", spare=200))
test_lockstep = BENCH.lockstep(UNITS, count=12_000, seeds=len(KINDS))
test_reset = BENCH.resets(UNITS[1:], range(1, 160, 7), count=2_000, drive=functools.partial(_drive, count=5))
test_offers_stand_for_all_time = offers(lambda: BENCH.make(1, 4, 1), depth=2)


def _run(unit_of, cases, table, *, cycles, kinds="none"):
    """Run jobs; check that each takes k multiplications per lane and example, for any number of columns."""
    run = BENCH.check(unit_of, kinds=kinds, drive=_loaded(unit_of, cases, table, cycles=cycles))
    assert run.trace["multiplied"].sum() == len(table) * SLOTS * sum(case.job != Job.TOTAL for case in cases)
    return run


test_parameters = refused(CentroidProduct, {"table": CentroidTable(), "lanes": 4}, [
    ({"table": 16}, "Table must be a CentroidTable, not 16"),
    ({"lanes": 3}, "Lane count must be 1, 2, 4 or 8, not 3"),
    ({"dsps": 3}, "DSP block count must be 4, 2 or 1, not 3"),
], error=(TypeError, ValueError))


@pytest.mark.parametrize(("lanes", "centroids", "dsps"), UNITS)
def test_cycles(lanes, centroids, dsps):
    """Consecutive jobs take the stated number of cycles, and k multiplications per output."""
    generator = np.random.default_rng(lanes)
    columns = {Job.PRODUCT: (1, 2, 9, 40), Job.GRADIENT: (1, 7, 33), Job.TOTAL: (0, 0)}
    cases = [_case(generator, job, "ordinary", lanes, centroids, count) for job, counts in columns.items()
             for count in counts]
    unit_of = lanes, centroids, dsps
    run = _run(unit_of, [*cases, Case(job=Job.TOTAL)], _numbers(generator, "ordinary", centroids), cycles=5_000)
    taken = run.moves("job")
    assert np.diff(taken).tolist() == [BENCH.make(*unit_of).cycles(case.job, case.x.shape[1]) for case in cases]
    for case, first, end in zip(cases, taken, taken[1:], strict=False):
        each = 0 if case.job == Job.TOTAL else SLOTS * centroids
        assert run.trace["multiplied"][first:end].sum() == each


@pytest.mark.parametrize(("lanes", "centroids", "dsps"), UNITS)
def test_fixed_point(lanes, centroids, dsps):
    """With exact numbers, results match dense products, and gradients match sums of dense gradients."""
    for seed in range(1, 5):
        print(f"seed {seed}")
        generator = np.random.default_rng(seed)

        def fixed(*shape, bits, generator=generator):
            return (generator.integers(-1 << bits, 1 << bits, shape) / 16).astype(np.float32)

        table, columns = fixed(centroids, bits=7), 100
        operands = {"indices": generator.integers(0, centroids - 1, (lanes, columns)),  # last centroid is unused
                    "x": fixed(SLOTS, columns, bits=6)}
        start, upstream = fixed(SLOTS, lanes, bits=7), fixed(SLOTS, lanes, bits=6)
        cases = [Case(job=Job.PRODUCT, rows=start, **operands), Case(job=Job.GRADIENT, rows=upstream, **operands),
                 Case(job=Job.TOTAL)]
        _run((lanes, centroids, dsps), cases, table, cycles=4_000)
        outputs, gradients = _expected(cases, table, lanes)
        dense = summation.product(operands["x"], table[operands["indices"]].T, start)
        np.testing.assert_array_equal(outputs, _words(dense).ravel())
        weights = summation.product(upstream.T, operands["x"])
        totals = [weights[operands["indices"] == number].sum(dtype=np.float64) for number in range(centroids)]
        np.testing.assert_array_equal(gradients, _words(totals))
        assert gradients[-1] == 0


def test_table():
    """A table of the wrong length is reported, the next one is accepted, and no job starts during a load."""
    lanes, centroids, dsps = UNITS[0]
    unit = BENCH.unit(lanes, centroids, dsps)
    unit.load = None
    unit.reset()
    generator = np.random.default_rng(1)
    table = _numbers(generator, "ordinary", centroids)
    lengths = (centroids - 1, centroids + 1, 1)
    words = [word for length in lengths for word in np.arange(length)] + _words(table).tolist()
    last = [index == length - 1 for length in (*lengths, centroids) for index in range(length)]
    case = _case(generator, Job.PRODUCT, "ordinary", lanes, centroids, 3)
    cycles = 4_000
    ports = unit.lockstep(sources={
        "table": Feed(pack(word_layout(), {"data": np.array(words, np.uint32), "last": np.array(last)}),
                      np.where(np.arange(cycles) < 400, np.arange(cycles) % 3 == 0, 1) == 1),
        "job": Feed(np.array([Job.PRODUCT], np.uint32), np.arange(cycles) >= 135),
        "i": Feed(_columns(case, lanes, 4)), "rows": Feed(_rows(case.rows))}, sinks={"o": True}, cycles=cycles,
        seed=1)
    # Errors: a table of 15 words; a 16th word without ``last``; a 17th word on its own; and a table of one word.
    assert ports["error"].sum() == 4
    taken = np.flatnonzero(ports["table__valid"] & ports["table__ready"])
    begun, = np.flatnonzero(ports["job__valid"] & ports["job__ready"])
    assert np.count_nonzero(taken < begun) in np.cumsum([centroids - 1, centroids, 1, 1, centroids])
    assert len(taken) == len(words)


def test_layer():
    """Outputs and gradients are correct for 10 outputs and 30 examples, in groups of 4 and 8."""
    lanes, centroids, _ = UNITS[0]
    generator = np.random.default_rng(7)
    outputs, inputs, examples = 10, 64, 30
    indices = generator.integers(0, centroids, (outputs, inputs))
    table, x, upstream, bias = (_numbers(generator, "ordinary", *shape) for shape in (
        (centroids,), (examples, inputs), (examples, outputs), (outputs,)))

    def jobs(job, indices, x, rows):
        """Split a layer into jobs, one per group of outputs and group of examples, padded with zeros."""
        for first in range(0, len(indices), lanes):
            tile = np.zeros((lanes, indices.shape[1]), np.int64)
            tile[:len(indices[first:first + lanes])] = indices[first:first + lanes]
            for begin in range(0, len(x), SLOTS):
                batch, batch_rows = np.zeros((SLOTS, x.shape[1]), np.float32), np.zeros((SLOTS, lanes), np.float32)
                part = rows[begin:begin + SLOTS, first:first + lanes]
                batch[:len(part)], batch_rows[:len(part), :part.shape[1]] = x[begin:begin + SLOTS], part
                yield Case(job=job, indices=tile, x=batch, rows=batch_rows)

    def matrix(results, width):
        """Assemble the outputs of a layer's jobs into a matrix of shape (examples, width)."""
        groups = results.reshape(-(-width // lanes), -1, lanes)
        return np.concatenate(groups, axis=1)[:examples, :width]

    none = np.zeros((examples, inputs), np.float32)
    cases = [*jobs(Job.PRODUCT, indices, x, np.broadcast_to(bias, (examples, outputs))),
             *jobs(Job.GRADIENT, indices, x, upstream), Case(job=Job.TOTAL),
             *jobs(Job.PRODUCT, indices.T, upstream, none)]
    for kinds in ("none", "geometric"):
        _run(UNITS[0], cases, table, cycles=60_000, kinds=kinds)
    results, gradients = _expected(cases, table, lanes)
    results = results.reshape(-1, lanes)
    forward = 3 * 4 * SLOTS  # 3 groups of outputs by 4 groups of examples
    np.testing.assert_array_equal(matrix(results[:forward], outputs), _words(model.product(indices, table, x, bias)))
    np.testing.assert_array_equal(matrix(results[forward:], inputs),
                                  _words(model.product(indices.T, table, upstream, np.float32(0))))
    np.testing.assert_array_equal(gradients, _words(model.gradient(indices, x, upstream, centroids, lanes=lanes)))
