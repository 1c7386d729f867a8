# amaranth: UnusedElaboratable=no
import functools

import numpy as np
import pytest

from hdl.masking.mask import mask_beat_layout
from hdl.masking.source import MaskSource
from sim.golden import masking as model
from sim.golden import masking_cycles
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.masking import masks
from tests.traces import moved

# Words of a further job, none of which may be taken.
_SPARE = np.arange(1, 9, dtype=np.uint32)


@functools.cache
def _unit(lanes):
    return Unit(MaskSource(lanes=lanes))


def _run(lanes, beats, words, *, willing=None, words_willing=None, ready=True, cycles=None, reset=True):
    unit = _unit(lanes)
    if reset:
        unit.reset()
    feeds = {"i": Feed(masks.mask_rows(beats), willing), "words": Feed(words, words_willing)}
    return unit.lockstep(sources=feeds, sinks={"o": ready}, cycles=cycles)


# --- construction


@pytest.mark.parametrize("lanes", [0, 3, 32, 4.0, "4", None])
def test_lanes(lanes):
    with pytest.raises(ValueError, match=rf"^Lane count must be 1, 2, 4, 8 or 16, not {lanes!r}$"):
        MaskSource(lanes=lanes)


def test_ports():
    component = MaskSource(lanes=8)
    assert component.lanes == 8
    assert component.i.payload.shape() == component.o.payload.shape() == mask_beat_layout(8)


# --- values


@pytest.mark.parametrize("lanes", masks.LANES)
def test_sizes(lanes):
    """Batches of every size pass at one beat per cycle, combined with generated bits or alone."""
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


@pytest.mark.parametrize("lanes", masks.LANES)
def test_without_external(lanes):
    """Beats that are not external pass unchanged and take no word, also between external jobs."""
    generator = np.random.default_rng(lanes)
    jobs = masks.jobs(generator, 60)
    assert 10 < sum(job.mask.external for job in jobs) < 50
    words, kept = masks.external_all(generator, jobs)
    want = model.mask_beats(jobs, lanes, kept)
    trace = _run(lanes, model.mask_beats(jobs, lanes), np.concatenate([words, _SPARE]), cycles=len(want) + 10)
    np.testing.assert_array_equal(moved(trace)[1], masks.mask_rows(want, external=False))
    assert len(moved(trace, "words")[0]) == len(words)


# --- every cycle


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("memory", STALLS)
@pytest.mark.parametrize("source", STALLS)
@pytest.mark.parametrize("lanes", masks.LANES)
def test_lockstep(lanes, source, memory, sink):
    count = 1_500
    seed = STALLS.index(source) + 4 * STALLS.index(memory) + 16 * STALLS.index(sink)
    generator = np.random.default_rng(seed)
    jobs = masks.jobs(generator, 120, kinds=0.6)
    words, kept = masks.external_all(generator, jobs)
    want = model.mask_beats(jobs, lanes, kept)
    patterns = {"willing": stall_array(source, count, seed=seed), "ready": stall_array(sink, count, seed=seed + 1),
                "words_willing": stall_array(memory, count, seed=seed + 2)}
    trace = _run(lanes, model.mask_beats(jobs, lanes), words, **patterns)
    expected = masking_cycles.trace_source(want, words=len(words), **patterns)
    for name in ("i_valid", "words_valid", "words_ready", "o_valid"):
        np.testing.assert_array_equal(trace[name.replace("_", "__")], getattr(expected, name), f"{name}, {seed=}")
    offered = expected.i_valid
    np.testing.assert_array_equal(trace["i__ready"][offered], expected.i_ready[offered], f"i_ready, {seed=}")
    valid = expected.o_valid
    assert valid.sum() > 100
    rows = masks.mask_rows(want, external=False)
    np.testing.assert_array_equal(trace["o__payload"][valid], rows[expected.offered[valid]], f"payload, {seed=}")


@pytest.mark.parametrize("lanes", masks.LANES)
@pytest.mark.parametrize("given", range(1, 6))
def test_reset_in_a_job(lanes, given):
    """A reset discards the rest of a word."""
    generator = np.random.default_rng(given)
    job = model.Job(rows=4, columns=33, mask=model.Mask(external=True))
    words, kept = masks.external_all(generator, [job])
    _run(lanes, model.mask_beats([job], lanes), words, cycles=given)
    want = model.mask_beats([job], lanes, kept)
    _, got = moved(_run(lanes, model.mask_beats([job], lanes), words, cycles=len(want) + 10))
    np.testing.assert_array_equal(got, masks.mask_rows(want, external=False))
