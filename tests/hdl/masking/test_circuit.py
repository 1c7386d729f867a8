# amaranth: UnusedElaboratable=no
import dataclasses
import functools

import numpy as np
import pytest

from hdl.masking.circuit import MaskCircuit
from sim.golden import masking as model
from sim.streams import STALLS
from sim.verilated.vectors import Feed
from tests.hdl.masking import cycles as masking_cycles
from tests.hdl.masking import masks
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.refusals import refused_values
from tests.traces import moved

#: Width of elements in bits, keyed by the number of lanes.
WIDTHS = {1: 32, 2: 16, 4: 32, 8: 16, 16: 8}
ALTERNATIVES = {32: model.alternative(model.Element.FP32), 16: model.alternative(model.Element.FP16),
                8: model.alternative(model.Element.INT8)}


@dataclasses.dataclass
class _Case:
    """Mask jobs with all their inputs.

    Members
    -------
    kept : list of arrays
        For each job, flags that mark the elements kept by its mask.
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
        """Data beats with random keep bits."""
        keep = np.random.default_rng(7).random(self.elements.shape) < 0.5
        return masks.data_rows(self.elements, keep, self.last, WIDTHS[self.lanes])

    def expected(self, pairs):
        """Return the expected output beats for pairs of a mask beat and a data beat."""
        beats, indices = self.beats, np.array(pairs, np.int64).reshape(-1, 2)
        of_mask, of_data = indices[:, 0], indices[:, 1]
        elements = model.apply(self.elements[of_data], beats.mask[of_mask], self.alternative)
        return masks.data_rows(elements, beats.keep[of_mask], beats.last[of_mask] | self.last[of_data],
                               WIDTHS[self.lanes])

    def drive(self, spare=0):
        words = np.concatenate([self.words, np.arange(spare, dtype=np.uint32)])
        return Drive({"jobs": masks.job_rows(self.jobs), "i": self.data(), "words": words}, self,
                     {"alternative": self.alternative})

    def run(self, *, cycles, spare=0):
        unit, drive = BENCH.unit(self.lanes), self.drive(spare)
        unit.reset()
        return unit.lockstep(sources={name: Feed(rows) for name, rows in drive.beats.items()}, sinks={"o": True},
                             cycles=cycles, inputs=drive.inputs)


def _case(generator, jobs, lanes):
    """Draw the words of the jobs' external masks, and the jobs' data in packets of the right lengths."""
    words, kept = masks.external_all(generator, jobs)
    counts = [job.beats(lanes) for job in jobs]
    last = np.zeros(sum(counts), bool)
    last[np.cumsum([count for count in counts if count]) - 1] = True
    return _Case(lanes, jobs, words, kept, masks.elements(generator, len(last), lanes, WIDTHS[lanes]), last)


def _spoil(case, generator, share=0.6):
    """Change the lengths of some packets so that they do not match their jobs."""
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


def _model(unit, case, willing, ready):
    trace = masking_cycles.trace_circuit(
        case.jobs, case.last, lanes=case.lanes, words=len(case.words), masks=case.beats, willing=willing["i"],
        jobs_willing=willing["jobs"], words_willing=willing["words"], ready=ready["o"])
    want = Want.of(trace, case.expected(trace.pairs))
    return dataclasses.replace(want, ports={
        **want.ports, **{name: getattr(trace, name) for name in ("fetched", "masked", "error")}})


def _drive(generator, lanes, count=100):
    return _case(generator, masks.jobs(generator, count, empty=0.1), lanes).drive()


def _make(lanes):
    return MaskCircuit(lanes=lanes, width=WIDTHS[lanes], index_bits=masks.INDEX_BITS)


def _malformed(generator, lanes):
    """Draw data packets, many of them shorter or longer than their jobs."""
    return _spoil(_case(generator, masks.jobs(generator, 80, limit=6, empty=0.1), lanes), generator).drive()


BENCH = UnitBench(_make, _model, _drive, rate=0.7)
LANES = [(lanes,) for lanes in masks.LANES]
test_lockstep = BENCH.lockstep(LANES, count=1_200, seeds=4, least=10)
test_reset_in_a_job = BENCH.resets(LANES, (3, 5, 6, 7, 8, 9, 12, 40), count=1_200, drive=_malformed)
test_cocotb = BENCH.cocotb([(2,), (16,)], cut=10, drive=functools.partial(_drive, count=12))


# --- construction


test_lanes = refused_values(MaskCircuit, {}, "lanes", [0, 3, 32, 4.0, "4", None],
                            "Lane count must be 1, 2, 4, 8 or 16")


test_width = refused_values(MaskCircuit, {"lanes": 4}, "width", [0, -1, 8.0, "8", None],
                            "Element width must be a positive integer")


test_index_bits = refused_values(MaskCircuit, {"lanes": 4}, "index_bits", [0, 4, 17, 8.0, "8", None],
                                 "Index width must be 5 to 16 bits")


# --- values, counters, latency and throughput


@pytest.mark.parametrize("lanes", masks.LANES)
def test_kinds(lanes):
    """All sets of mask kinds work at every size, with one beat per cycle even across jobs."""
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


# --- data that ends too early or too late


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("lanes", masks.LANES)
def test_malformed_lockstep(lanes, seed):
    generator = np.random.default_rng(seed)
    drive = _malformed(generator, lanes)
    kinds = dict(zip(("i", "o", "jobs", "words"), generator.choice(STALLS, 4), strict=True))
    run = BENCH.check((lanes,), seed=seed, kinds=kinds, count=4_000, drive=drive)
    assert run.trace["error"].sum() > 1


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("difference", [-9, -2, -1, 1, 2, 9])
@pytest.mark.parametrize("lanes", masks.LANES)
def test_one_packet_is_malformed(lanes, difference, external):
    """A malformed packet ends no later than its job, with one error; the next packet is correct."""
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
