# amaranth: UnusedElaboratable=no
import dataclasses
import functools

import numpy as np
import pytest

from hdl.masking.source import MaskSource
from sim.golden import masking as model
from sim.verilated.vectors import Feed
from tests.hdl.masking import cycles as masking_cycles
from tests.hdl.masking import masks
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.refusals import refused_values
from tests.traces import moved

# Words of an additional job, which must not be accepted.
_SPARE = np.arange(1, 9, dtype=np.uint32)


def _drive(generator, lanes, count=120):
    jobs = masks.jobs(generator, count, kinds=0.6)
    words, kept = masks.external_all(generator, jobs)
    beats = model.mask_beats(jobs, lanes)
    return Drive({"i": masks.mask_rows(beats), "words": words}, (model.mask_beats(jobs, lanes, kept), len(words)))


def _model(unit, drawn, willing, ready):
    beats, words = drawn
    trace = masking_cycles.trace_source(beats, words=words, willing=willing["i"], words_willing=willing["words"],
                                        ready=ready["o"])
    want = Want.of(trace, masks.mask_rows(beats, external=False))
    return dataclasses.replace(want, ports={**want.ports, "i__ready": (trace.i_ready, trace.i_valid)})


BENCH = UnitBench(lambda lanes: MaskSource(lanes=lanes), _model, _drive)
LANES = [(lanes,) for lanes in masks.LANES]
test_lockstep = BENCH.lockstep(LANES, count=1_500, seeds=4, least=100)
test_reset_in_a_job = BENCH.resets(LANES, range(1, 6), count=500, drive=functools.partial(_drive, count=10))
test_lanes = refused_values(MaskSource, {}, "lanes", [0, 3, 32, 4.0, "4", None],
                            "Lane count must be 1, 2, 4, 8 or 16")


def _run(lanes, beats, words, *, cycles):
    unit = BENCH.unit(lanes)
    unit.reset()
    return unit.lockstep(sources={"i": Feed(masks.mask_rows(beats)), "words": Feed(words)}, sinks={"o": True},
                         cycles=cycles)


# --- values


@pytest.mark.parametrize("lanes", masks.LANES)
def test_sizes(lanes):
    """External masks of every size are processed at one beat per cycle, with or without generated masks."""
    generator = np.random.default_rng(lanes)
    jobs = [model.Job(rows=rows, columns=columns, count=count, mask=model.Mask(external=True, triangle=triangle))
            for rows, columns in masks.SIZES for count in (1, 3) for triangle in (False, True)]
    words, kept = masks.external_all(generator, jobs)
    want = model.mask_beats(jobs, lanes, kept)
    trace = _run(lanes, model.mask_beats(jobs, lanes), np.concatenate([words, _SPARE]), cycles=len(want) + 10)
    when, got = moved(trace)
    np.testing.assert_array_equal(got, masks.mask_rows(want, external=False))
    assert when.tolist() == list(range(MaskSource.latency, MaskSource.latency + len(want)))
    taken, _ = moved(trace, "words")
    assert len(taken) == sum(model.words_fetched(job) for job in jobs)


@pytest.mark.parametrize("lanes", masks.LANES)
def test_a_word_is_taken_with_the_first_beat_that_needs_it(lanes):
    job = model.Job(rows=40, columns=13, mask=model.Mask(external=True))
    words, kept = masks.external_all(np.random.default_rng(1), [job])
    beats = model.mask_beats([job], lanes, kept)
    trace = _run(lanes, model.mask_beats([job], lanes), np.concatenate([words, _SPARE]), cycles=len(beats) + 10)
    assert moved(trace, "words")[0].tolist() == np.flatnonzero(beats.word).tolist()
