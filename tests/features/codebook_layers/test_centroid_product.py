# amaranth: UnusedElaboratable=no
import dataclasses
import functools

import numpy as np
import pytest

from hdl.features.codebook.format import CentroidTable
from hdl.features.codebook_layers.centroid_product import CentroidProduct, Job, column_layout
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.streams.stream import word_layout
from sim import formal
from sim.golden import summation
from sim.golden.features.codebook_layers import centroid_product as model
from sim.payload import pack, unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.features.compute.terms import KINDS, draw
from tests.hdl.unit_bench import sinks
from tests.refusals import refuses

#: Lanes, centroids and DSP blocks: with a walk through few centroids, and one lane that is not combined with others.
UNITS = ((4, 16, 4), (1, 4, 1))


@functools.cache
def _unit(lanes, centroids, dsps):
    component = CentroidProduct(table=CentroidTable(centroids=centroids, loaded=True), lanes=lanes, dsps=dsps)
    return component, Unit(component)


@dataclasses.dataclass(kw_only=True)
class Case:
    """A job: indices (outputs, columns), inputs (examples, columns), and starts or gradients (examples, outputs)."""

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
    """Words of rows, which are plain numbers if there is one lane."""
    return _words(rows) if rows.shape[1] > 1 else _words(rows)[:, 0]


def _columns(case, lanes, bits):
    """Beats of a job: eight examples for each column."""
    count = case.x.shape[1]
    return pack(column_layout(lanes, bits), {
        "input": _words(case.x.T).ravel(), "indices": np.repeat(case.indices.T, SLOTS, axis=0),
        "last": np.repeat(np.arange(count) == count - 1, SLOTS)})


def _load(unit, table):
    layout = word_layout()
    beats = pack(layout, {"data": _words(table), "last": np.arange(len(table)) == len(table) - 1})
    ports = unit.lockstep(sources={"table": Feed(beats)}, sinks={}, cycles=8 * max(8, len(table)) + len(table) + 4,
                          seed=1)
    assert np.count_nonzero(ports["table__valid"] & ports["table__ready"]) == len(table)
    assert not ports["error"].any()


def _run(unit, cases, lanes, centroids, *, cycles, seed, source=None, sink=True):
    """Run jobs with a table that was loaded, and return all ports."""
    bits = (centroids - 1).bit_length()
    patterns = {name: None if source is None else stall_array(source, cycles, seed=seed + number)
                for number, name in enumerate(("job", "i", "rows"))}
    given = [case for case in cases if case.job != Job.TOTAL]
    beats = {"job": np.array([case.job for case in cases], np.uint32),
             "i": np.concatenate([_columns(case, lanes, bits) for case in given]),
             "rows": _rows(np.concatenate([case.rows for case in given]))}
    ready = {name: sink if sink is True else stall_array(sink, cycles, seed=seed + number)
             for number, name in enumerate(("o", "gradients"), start=3)}
    return unit.lockstep(sources={name: Feed(beats[name], patterns[name]) for name in beats}, sinks=ready,
                         cycles=cycles, seed=seed)


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
    return [_words(np.concatenate(one)).ravel() for one in (outputs, gradients)]


def _taken(ports, name):
    moved = (ports[f"{name}__valid"] & ports[f"{name}__ready"]) == 1
    return ports[f"{name}__payload"][moved]


def _check(ports, cases, table, lanes, *, seed):
    outputs, gradients = _expected(cases, table, lanes)
    np.testing.assert_array_equal(_taken(ports, "o").reshape(-1), outputs, f"{seed=}")
    found = unpack(word_layout(), _taken(ports, "gradients"))
    np.testing.assert_array_equal(found["data"], gradients, f"{seed=}")
    assert np.flatnonzero(found["last"]).tolist() == [
        (number + 1) * len(table) - 1 for number in range(len(gradients) // len(table))]
    # k multiplications in each lane for each of eight outputs, whatever the number of columns.
    assert ports["multiplied"].sum() == len(table) * SLOTS * sum(case.job != Job.TOTAL for case in cases)


@pytest.mark.parametrize(("parameters", "error", "message"), [
    ({"table": 16}, TypeError, "Table must be a CentroidTable, not 16"),
    ({"lanes": 3}, ValueError, "Lane count must be 1, 2, 4 or 8, not 3"),
    ({"dsps": 3}, ValueError, "DSP block count must be 4, 2 or 1, not 3"),
])
def test_parameters(parameters, error, message):
    refuses(message, CentroidProduct, error=error, **{"table": CentroidTable(), "lanes": 4, **parameters})


@pytest.mark.parametrize(("lanes", "centroids", "dsps"), UNITS)
@pytest.mark.parametrize("source", STALLS)
def test_stalls(lanes, centroids, dsps, source):
    """Jobs in any order, of all kinds of numbers, under stalls on all sides: outputs, gradients and counts."""
    _, unit = _unit(lanes, centroids, dsps)
    for seed, sink in sinks(source):
        generator = np.random.default_rng(seed)
        for kind in KINDS:
            unit.reset()
            table = _numbers(generator, kind, centroids)
            _load(unit, table)
            jobs = [*generator.integers(0, 3, 7), Job.PRODUCT, Job.GRADIENT, Job.TOTAL, Job.PRODUCT, Job.TOTAL]
            cases = [_case(generator, Job(job), kind, lanes, centroids, int(generator.integers(1, 12)))
                     for job in jobs]
            ports = _run(unit, cases, lanes, centroids, cycles=12_000, seed=seed, source=source, sink=sink)
            _check(ports, cases, table, lanes, seed=seed)


@pytest.mark.parametrize(("lanes", "centroids", "dsps"), UNITS)
def test_cycles(lanes, centroids, dsps):
    """Jobs behind each other take as many cycles as stated, and k multiplications for each output."""
    component, unit = _unit(lanes, centroids, dsps)
    generator = np.random.default_rng(lanes)
    columns = {Job.PRODUCT: (1, 2, 9, 40), Job.GRADIENT: (1, 7, 33), Job.TOTAL: (0, 0)}
    cases = [_case(generator, job, "ordinary", lanes, centroids, count) for job, counts in columns.items()
             for count in counts]
    unit.reset()
    table = _numbers(generator, "ordinary", centroids)
    _load(unit, table)
    ports = _run(unit, [*cases, Case(job=Job.TOTAL)], lanes, centroids, cycles=5_000, seed=1)
    taken = np.flatnonzero(ports["job__valid"] & ports["job__ready"])
    assert np.diff(taken).tolist() == [component.cycles(case.job, case.x.shape[1]) for case in cases]
    for case, first, end in zip(cases, taken, taken[1:], strict=False):
        each = 0 if case.job == Job.TOTAL else SLOTS * centroids
        assert ports["multiplied"][first:end].sum() == each


@pytest.mark.parametrize(("lanes", "centroids", "dsps"), UNITS)
def test_fixed_point(lanes, centroids, dsps):
    """Numbers whose sums and products are exact: the bits of the dense product with the expanded matrix, and the sums
    of the dense gradients of weights."""
    _, unit = _unit(lanes, centroids, dsps)
    for seed in range(1, 5):
        print(f"seed {seed}")
        generator = np.random.default_rng(seed)

        def fixed(*shape, bits, generator=generator):
            return (generator.integers(-1 << bits, 1 << bits, shape) / 16).astype(np.float32)

        table, columns = fixed(centroids, bits=7), 100
        given = {"indices": generator.integers(0, centroids - 1, (lanes, columns)),  # the last one is not used
                 "x": fixed(SLOTS, columns, bits=6)}
        start, upstream = fixed(SLOTS, lanes, bits=7), fixed(SLOTS, lanes, bits=6)
        unit.reset()
        _load(unit, table)
        cases = [Case(job=Job.PRODUCT, rows=start, **given), Case(job=Job.GRADIENT, rows=upstream, **given),
                 Case(job=Job.TOTAL)]
        ports = _run(unit, cases, lanes, centroids, cycles=4_000, seed=seed)
        _check(ports, cases, table, lanes, seed=seed)
        dense = summation.product(given["x"], table[given["indices"]].T, start)
        np.testing.assert_array_equal(_taken(ports, "o").reshape(-1), _words(dense).ravel())
        weights = summation.product(upstream.T, given["x"])
        totals = [weights[given["indices"] == number].sum(dtype=np.float64) for number in range(centroids)]
        gradients = unpack(word_layout(), _taken(ports, "gradients"))["data"]
        np.testing.assert_array_equal(gradients, _words(totals))
        assert gradients[-1] == 0


def test_table():
    """Tables of wrong length raise an error, and the next one is sound; no job begins within a table."""
    lanes, centroids, dsps = UNITS[0]
    _, unit = _unit(lanes, centroids, dsps)
    unit.reset()
    generator = np.random.default_rng(1)
    table = _numbers(generator, "ordinary", centroids)
    lengths = (centroids - 1, centroids + 1, 1)
    words = [word for length in lengths for word in np.arange(length)] + _words(table).tolist()
    last = [place == length - 1 for length in (*lengths, centroids) for place in range(length)]
    case = _case(generator, Job.PRODUCT, "ordinary", lanes, centroids, 3)
    cycles = 4_000
    ports = unit.lockstep(sources={
        "table": Feed(pack(word_layout(), {"data": np.array(words, np.uint32), "last": np.array(last)}),
                      np.where(np.arange(cycles) < 400, np.arange(cycles) % 3 == 0, 1) == 1),
        "job": Feed(np.array([Job.PRODUCT], np.uint32), np.arange(cycles) >= 135),
        "i": Feed(_columns(case, lanes, 4)), "rows": Feed(_rows(case.rows))}, sinks={"o": True}, cycles=cycles,
        seed=1)
    # 15 words and ``last``; a 16th without, and ``last`` on the 17th; one word alone.
    assert ports["error"].sum() == 4
    taken = np.flatnonzero(ports["table__valid"] & ports["table__ready"])
    begun, = np.flatnonzero(ports["job__valid"] & ports["job__ready"])
    assert np.count_nonzero(taken < begun) in np.cumsum([centroids - 1, centroids, 1, 1, centroids])
    assert len(taken) == len(words)


def test_reset():
    """A reset in any part of a job: what follows is as if nothing had been."""
    lanes, centroids, dsps = UNITS[1]
    _, unit = _unit(lanes, centroids, dsps)
    generator = np.random.default_rng(1)
    table = _numbers(generator, "ordinary", centroids)
    before = [_case(generator, Job.GRADIENT, "ordinary", lanes, centroids, 4), Case(job=Job.TOTAL)]
    after = [_case(generator, job, "ordinary", lanes, centroids, 4) for job in (Job.PRODUCT, Job.GRADIENT, Job.TOTAL)]
    for cut in range(1, 160, 7):
        unit.reset()
        _load(unit, table)
        _run(unit, before, lanes, centroids, cycles=cut, seed=cut)
        unit.reset()
        _load(unit, table)
        ports = _run(unit, after, lanes, centroids, cycles=600, seed=cut)
        _check(ports, after, table, lanes, seed=cut)


def test_offers_stand_for_all_time():
    """The rule of streams holds for outputs and gradients, whatever is given."""
    component = CentroidProduct(table=CentroidTable(centroids=4, loaded=True), lanes=1, dsps=1)
    formal.prove(formal.Offers(component), depth=2)


def test_layer():
    """A layer of 10 outputs and 30 examples, in groups of 4 and 8: outputs, gradients of centroids and of inputs."""
    lanes, centroids, dsps = UNITS[0]
    _, unit = _unit(lanes, centroids, dsps)
    generator = np.random.default_rng(7)
    outputs, inputs, examples = 10, 64, 30
    indices = generator.integers(0, centroids, (outputs, inputs))
    table, x, upstream, bias = (_numbers(generator, "ordinary", *shape) for shape in (
        (centroids,), (examples, inputs), (examples, outputs), (outputs,)))

    def jobs(job, indices, x, rows):
        """Jobs of a layer: groups of examples within groups of outputs, filled up with zeros."""
        for first in range(0, len(indices), lanes):
            mine = np.zeros((lanes, indices.shape[1]), np.int64)
            mine[:len(indices[first:first + lanes])] = indices[first:first + lanes]
            for begin in range(0, len(x), SLOTS):
                given, beside = np.zeros((SLOTS, x.shape[1]), np.float32), np.zeros((SLOTS, lanes), np.float32)
                part = rows[begin:begin + SLOTS, first:first + lanes]
                given[:len(part)], beside[:len(part), :part.shape[1]] = x[begin:begin + SLOTS], part
                yield Case(job=job, indices=mine, x=given, rows=beside)

    def matrix(found, width):
        """Outputs of such jobs, in shape (examples, width)."""
        groups = found.reshape(-(-width // lanes), -1, lanes)
        return np.concatenate(groups, axis=1)[:examples, :width]

    none = np.zeros((examples, inputs), np.float32)
    cases = [*jobs(Job.PRODUCT, indices, x, np.broadcast_to(bias, (examples, outputs))),
             *jobs(Job.GRADIENT, indices, x, upstream), Case(job=Job.TOTAL),
             *jobs(Job.PRODUCT, indices.T, upstream, none)]
    unit.reset()
    _load(unit, table)
    ports = _run(unit, cases, lanes, centroids, cycles=60_000, seed=1)
    found = _taken(ports, "o").reshape(-1, lanes)
    forward = 3 * 4 * SLOTS  # groups of outputs, and of examples
    np.testing.assert_array_equal(matrix(found[:forward], outputs), _words(model.product(indices, table, x, bias)))
    np.testing.assert_array_equal(matrix(found[forward:], inputs),
                                  _words(model.product(indices.T, table, upstream, np.float32(0))))
    gradients = unpack(word_layout(), _taken(ports, "gradients"))["data"]
    np.testing.assert_array_equal(gradients, _words(model.gradient(indices, x, upstream, centroids, lanes=lanes)))
    assert ports["multiplied"].sum() == centroids * SLOTS * (len(cases) - 1)
