# amaranth: UnusedElaboratable=no
import dataclasses
import functools

import cocotb
import numpy as np
import pytest

from hdl.masking.circuit import MaskCircuit
from hdl.masking.mask import job_layout
from hdl.streams.stream import beat_layout
from sim import regression
from sim.golden import masking as model
from sim.golden import masking_cycles
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.vectors import Feed, Unit
from tests.hdl.masking import masks
from tests.traces import moved

#: Width of the elements for each number of lanes.
WIDTHS = {1: 32, 2: 16, 4: 32, 8: 16, 16: 8}
ALTERNATIVES = {32: model.alternative(model.Element.FP32), 16: model.alternative(model.Element.FP16),
                8: model.alternative(model.Element.INT8)}
_HANDSHAKES = ("jobs_valid", "jobs_ready", "i_valid", "i_ready", "words_valid", "words_ready", "o_valid")
_PULSES = ("fetched", "masked", "error")


@functools.cache
def _unit(lanes):
    return Unit(MaskCircuit(lanes=lanes, width=WIDTHS[lanes], index_bits=masks.INDEX_BITS))


@dataclasses.dataclass
class _Case:
    """Jobs with all of their inputs.

    Members
    -------
    kept : list of arrays
        Elements that each job's mask keeps.
    beats : Beats
        Mask beats.
    """

    lanes: int
    jobs: list
    words: np.ndarray
    kept: list
    elements: np.ndarray
    last: np.ndarray

    @property
    def beats(self):
        return model.mask_beats(self.jobs, self.lanes, self.kept)

    @property
    def alternative(self):
        return ALTERNATIVES[WIDTHS[self.lanes]]

    def data(self):
        """Beats of data, whose keep bits are noise."""
        keep = np.random.default_rng(7).random(self.elements.shape) < 0.5
        return masks.data_rows(self.elements, keep, self.last, WIDTHS[self.lanes])

    def expected(self, pairs):
        """Expected output beats for pairs of a mask beat and a beat of data."""
        beats, indices = self.beats, np.array(pairs, np.int64).reshape(-1, 2)
        of_mask, of_data = indices[:, 0], indices[:, 1]
        elements = model.apply(self.elements[of_data], beats.mask[of_mask], self.alternative)
        return masks.data_rows(elements, beats.keep[of_mask], beats.last[of_mask] | self.last[of_data],
                               WIDTHS[self.lanes])

    def run(self, *, reset=True, cycles=None, ready=True, willing=None, jobs_willing=None, words_willing=None,
            spare=0):
        unit = _unit(self.lanes)
        if reset:
            unit.reset()
        words = np.concatenate([self.words, np.arange(spare, dtype=np.uint32)])
        feeds = {"jobs": Feed(masks.job_rows(self.jobs), jobs_willing), "i": Feed(self.data(), willing),
                 "words": Feed(words, words_willing)}
        return unit.lockstep(sources=feeds, sinks={"o": ready}, cycles=cycles,
                             inputs={"alternative": self.alternative})


def _case(generator, jobs, lanes):
    """Valid data for jobs."""
    words, kept = masks.external_all(generator, jobs)
    counts = [job.beats(lanes) for job in jobs]
    last = np.zeros(sum(counts), bool)
    last[np.cumsum([count for count in counts if count]) - 1] = True
    return _Case(lanes, jobs, words, kept, masks.elements(generator, len(last), lanes, WIDTHS[lanes]), last)


def _spoil(case, generator, share=0.6):
    """Make packets shorter or longer than their jobs."""
    counts = [job.beats(case.lanes) for job in case.jobs if job.elements]
    for index, count in enumerate(counts):
        if generator.random() < share:
            counts[index] = max(1, count + int(generator.integers(-count, 8)))
    case.last = np.zeros(sum(counts), bool)
    case.last[np.cumsum(counts) - 1] = True
    case.elements = masks.elements(generator, len(case.last), case.lanes, WIDTHS[case.lanes])
    return case


def _pairs(case):
    return [(beat, beat) for beat in range(len(case.last))]


# --- construction


@pytest.mark.parametrize("lanes", [0, 3, 32, 4.0, "4", None])
def test_lanes(lanes):
    with pytest.raises(ValueError, match=rf"^Lane count must be 1, 2, 4, 8 or 16, not {lanes!r}$"):
        MaskCircuit(lanes=lanes)


@pytest.mark.parametrize("width", [0, -1, 8.0, "8", None])
def test_width(width):
    with pytest.raises(ValueError, match=rf"^Element width must be a positive integer, not {width!r}$"):
        MaskCircuit(lanes=4, width=width)


@pytest.mark.parametrize("index_bits", [0, 4, 17, 8.0, "8", None])
def test_index_bits(index_bits):
    with pytest.raises(ValueError, match=rf"^Index width must be 5 to 16 bits, not {index_bits!r}$"):
        MaskCircuit(lanes=4, index_bits=index_bits)


def test_ports():
    component = MaskCircuit(lanes=16, width=8, index_bits=9)
    assert (component.lanes, component.width, component.index_bits) == (16, 8, 9)
    assert component.jobs.payload.shape() == job_layout(9)
    assert component.i.payload.shape() == component.o.payload.shape() == beat_layout(16, 8)
    assert (MaskCircuit.latency, MaskCircuit.data_latency) == (8, 1)


# --- values, counters, latency and throughput


@pytest.mark.parametrize("lanes", masks.LANES)
def test_kinds(lanes):
    """Every set of kinds works with every size, at one beat in every cycle from the first job to the last."""
    generator = np.random.default_rng(lanes)
    jobs = [model.Job(rows=rows, columns=columns, mask=masks.mask(generator, enables, rows, columns))
            for enables in masks.COMBINATIONS for rows, columns in masks.SIZES]
    case = _case(generator, jobs, lanes)
    trace = case.run(cycles=len(case.last) + 50, spare=10)
    when, got = moved(trace)
    np.testing.assert_array_equal(got, case.expected(_pairs(case)))
    assert when.tolist() == list(range(MaskCircuit.latency, MaskCircuit.latency + len(got)))
    assert (when - moved(trace, "i")[0] == MaskCircuit.data_latency).all()
    assert trace["fetched"].sum() == sum(model.words_fetched(job) for job in jobs)
    assert trace["masked"].sum() == sum((~kept).sum() for kept in case.kept)
    assert not trace["error"].any()


@pytest.mark.parametrize("lanes", masks.LANES)
def test_batches(lanes):
    """Batches of matrices of uneven sizes are masked."""
    generator = np.random.default_rng(lanes)
    jobs = [model.Job(rows=rows, columns=columns, count=count, mask=masks.mask(
        generator, {"triangle": count == 2, "external": count == 3}, rows, columns))
        for rows, columns in ((1, 1), (3, 5), (7, 17), (23, 31), (10, 70)) for count in (1, 2, 3, 7)]
    case = _case(generator, jobs, lanes)
    when, got = moved(case.run(cycles=len(case.last) + 50))
    np.testing.assert_array_equal(got, case.expected(_pairs(case)))
    assert when.tolist() == list(range(MaskCircuit.latency, MaskCircuit.latency + len(got)))


@pytest.mark.parametrize("lanes", masks.LANES)
def test_generated_is_external(lanes):
    """A generated mask and the same mask from memory give the same beats, for all kinds."""
    generator = np.random.default_rng(lanes)
    made = [model.Job(rows=rows, columns=columns, count=2, mask=masks.mask(generator, enables, rows, columns))
            for enables in masks.COMBINATIONS if not enables["external"]
            for rows, columns in ((1, 1), (5, 33), (9, 7), (32, 32))]
    case = _case(generator, made, lanes)
    fetched = dataclasses.replace(
        case, jobs=[dataclasses.replace(job, mask=model.Mask(external=True)) for job in made],
        words=np.concatenate([model.words(kept) for kept in case.kept]))
    traces = [each.run(cycles=len(case.last) + 20, spare=10) for each in (case, fetched)]
    for name in ("o__valid", "masked"):
        np.testing.assert_array_equal(traces[0][name], traces[1][name], name)
    # The payload of a cycle without a beat depends on the registers before the reset.
    np.testing.assert_array_equal(*(moved(trace)[1] for trace in traces))
    assert [trace["fetched"].sum() for trace in traces] == [0, sum(-(-job.elements // 32) for job in made)]


@pytest.mark.parametrize("lanes", masks.LANES)
def test_words_of_square_matrices(lanes):
    """An external mask takes N * N / 32 words, and a generated one none."""
    for size in (32, 64):
        for kinds, words in (({"external": True}, size * size // 32), ({"triangle": True}, 0)):
            case = _case(np.random.default_rng(size), [
                model.Job(rows=size, columns=size, mask=model.Mask(**kinds))], lanes)
            trace = case.run(cycles=len(case.last) + 20, spare=5)
            assert trace["fetched"].sum() == trace["words__ready"].sum() == words


# --- every cycle


def _lockstep(case, patterns, seed):
    trace = case.run(**patterns)
    expected = masking_cycles.trace_circuit(case.jobs, case.last, lanes=case.lanes, words=len(case.words),
                                            masks=case.beats, **patterns)
    for name in _HANDSHAKES:
        np.testing.assert_array_equal(trace[name.replace("_", "__")], getattr(expected, name), f"{name}, {seed=}")
    for name in _PULSES:
        np.testing.assert_array_equal(trace[name], getattr(expected, name), f"{name}, {seed=}")
    valid = expected.o_valid
    np.testing.assert_array_equal(trace["o__payload"][valid], case.expected(expected.pairs)[expected.offered[valid]],
                                  f"payload, {seed=}")
    return expected


def _patterns(count, seed, source="geometric", sink="geometric", jobs="geometric", words="geometric"):
    kinds = {"willing": source, "ready": sink, "jobs_willing": jobs, "words_willing": words}
    return {name: stall_array(kind, count, seed=seed + place, rate=0.7)
            for place, (name, kind) in enumerate(kinds.items())}


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("words", STALLS)
@pytest.mark.parametrize("source", STALLS)
@pytest.mark.parametrize("lanes", masks.LANES)
def test_lockstep(lanes, source, words, sink):
    seed = STALLS.index(source) + 4 * STALLS.index(words) + 16 * STALLS.index(sink)
    generator = np.random.default_rng(seed)
    case = _case(generator, masks.jobs(generator, 100, empty=0.1), lanes)
    jobs = STALLS[generator.integers(len(STALLS))]
    expected = _lockstep(case, _patterns(1_200, seed, source, sink, jobs, words), seed)
    assert len(expected.pairs) > 10
    assert not expected.error.any()


# --- data that ends too early or too late


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("lanes", masks.LANES)
def test_malformed_lockstep(lanes, seed):
    generator = np.random.default_rng(seed)
    case = _spoil(_case(generator, masks.jobs(generator, 80, limit=6, empty=0.1), lanes), generator)
    kinds = [STALLS[kind] for kind in generator.integers(len(STALLS), size=4)]
    expected = _lockstep(case, _patterns(4_000, seed, *kinds), seed)
    assert expected.error.sum() > 1


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("difference", [-9, -2, -1, 1, 2, 9])
@pytest.mark.parametrize("lanes", masks.LANES)
def test_one_packet_is_malformed(lanes, difference, external):
    """A packet out ends with its job or before, an error is raised once, and the next packet meets the next job."""
    generator = np.random.default_rng(lanes)
    jobs = [model.Job(rows=10, columns=19, mask=model.Mask(external=external, triangle=True))] * 3
    case = _case(generator, jobs, lanes)
    sound = len(case.last) // 3
    counts = [sound, sound + difference, sound]
    case.last = np.zeros(sum(counts), bool)
    case.last[np.cumsum(counts) - 1] = True
    case.elements = masks.elements(generator, len(case.last), lanes, WIDTHS[lanes])
    trace = case.run(cycles=3 * sound + 60, spare=5)
    middle = min(counts[1], sound)
    pairs = [*((beat, beat) for beat in range(sound + middle)),
             *((2 * sound + beat, sound + counts[1] + beat) for beat in range(sound))]
    _, got = moved(trace)
    np.testing.assert_array_equal(got, case.expected(pairs))
    assert trace["error"].sum() == 1
    assert trace["fetched"].sum() == len(case.words)
    assert len(moved(trace, "i")[0]) == len(case.last)


@pytest.mark.parametrize("lanes", masks.LANES)
@pytest.mark.parametrize("given", [3, 5, 6, 7, 8, 9, 12, 40])
def test_reset_in_a_job(lanes, given):
    """A reset discards jobs, mask beats, the rest of a word, and a packet that is being discarded."""
    generator = np.random.default_rng(given)
    job = model.Job(rows=4, columns=33, mask=model.Mask(external=True))
    broken = _case(generator, [job, job], lanes)
    broken.last[:] = given % 2  # the first beat of the data ends its packet, or none does
    broken.run(cycles=given)
    case = _case(generator, masks.jobs(generator, 10), lanes)
    _, got = moved(case.run(cycles=len(case.last) + 20))
    np.testing.assert_array_equal(got, case.expected(_pairs(case)))


# --- the same under cocotb, after a reset in the middle of a job


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def masks_batches(dut):
    parameters = regression.parameters()
    beat = beat_layout(parameters["lanes"], parameters["width"])
    await start(dut)
    dut.alternative.value = parameters["alternative"]
    dut.jobs__payload.value = int("5" * (len(dut.jobs__payload) // 4), 16)
    dut.jobs__valid.value = dut.i__valid.value = dut.words__valid.value = 1
    await cycles(dut, 10)
    dut.rst.value = 1
    dut.jobs__valid.value = dut.i__valid.value = dut.words__valid.value = 0
    await cycles(dut, 1)
    dut.rst.value = 0
    kind = parameters["stalls"]
    layouts = {"jobs": job_layout(masks.INDEX_BITS), "i": beat, "words": 32}
    sources = {name: Source(dut, name, layout, stalls=stalls(kind, seed=seed))
               for seed, (name, layout) in enumerate(layouts.items())}
    sink = Sink(dut, "o", beat, stalls=stalls(kind, seed=9))
    monitors = {name: Monitor(dut, name, layout) for name, layout in (*layouts.items(), ("o", beat))}
    for name, source in sources.items():
        cocotb.start_soon(source.send(parameters[name]))
    assert await sink.receive(len(parameters["o"])) == parameters["o"]
    assert [len(monitors[name].beats) for name in (*layouts, "o")] == [
        len(parameters[name]) for name in (*layouts, "o")]


@pytest.mark.parametrize("kind", ["none", "geometric"])
@pytest.mark.parametrize("lanes", [2, 16])
def test_cocotb(lanes, kind):
    generator = np.random.default_rng(1)
    case = _case(generator, masks.jobs(generator, 12), lanes)
    beats, keep = case.beats, masks.number(case.beats.keep).tolist()
    elements = model.apply(case.elements, beats.mask, case.alternative).tolist()

    def fields(rows):
        return [{"elements": row, "keep": kept, "last": int(last)}
                for row, kept, last in zip(rows, keep, case.last, strict=True)]

    regression.run(MaskCircuit(lanes=lanes, width=WIDTHS[lanes], index_bits=masks.INDEX_BITS), module=__name__,
                   parameters={"lanes": lanes, "width": WIDTHS[lanes], "stalls": kind,
                               "alternative": case.alternative, "jobs": [masks.job_fields(job) for job in case.jobs],
                               "words": case.words.tolist(), "i": fields(case.elements.tolist()),
                               "o": fields(elements)})
