# amaranth: UnusedElaboratable=no

import numpy as np
import pytest

from hdl.optimizer.slices import RowJoiner, RowSplitter
from hdl.streams.stream import beat_layout
from sim.streams import STALLS, stall_array
from sim.verilated.optimizer import beats
from sim.verilated.vectors import Feed, Unit, unpack
from tests.refusals import refuses
from tests.traces import moved
from tests.traces import taken as beats_taken

WIDTHS = [(4, 1), (4, 2), (8, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize("unit", [RowSplitter, RowJoiner])
@pytest.mark.parametrize(("parameters", "message"), [
    ({"lanes": 3}, "Lane count must be 1, 2, 4 or 8, not 3"),
    ({"slice_lanes": 3}, "Slice lane count must be 1, 2, 4 or 8 and at most 4, not 3"),
    ({"slice_lanes": 8}, "Slice lane count must be 1, 2, 4 or 8 and at most 4, not 8"),
])
def test_parameters(unit, parameters, message):
    refuses(message, unit, **{"lanes": 4, "slice_lanes": 1, **parameters})


def runs(seed):
    """Draw vectors of elements with different lengths."""
    generator = np.random.default_rng(seed)
    return [generator.integers(1, 1 << 32, count, dtype=np.uint32) for count in generator.integers(1, 20, 40)]


def taken(unit, beats_in, lanes_out, give, take, seed):
    """Run a unit; return the cycles in which beats leave, the fields of these beats, and the trace."""
    cycles = 12 * 8 * len(beats_in) + 400
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(beats_in, willing=stall_array(give, cycles, seed=seed + 99))},
                          sinks={"o": stall_array(take, cycles, seed=seed)})
    return *beats_taken(trace, "o", beat_layout(lanes_out)), trace


@pytest.mark.parametrize(("lanes", "slice_lanes"), WIDTHS)
def test_splitter(lanes, slice_lanes):
    unit = Unit(RowSplitter(lanes=lanes, slice_lanes=slice_lanes))
    for seed, (give, take) in enumerate((give, take) for give in STALLS for take in STALLS):
        fills = runs(seed)
        rows = beats(fills, beat_layout(lanes))
        done, fields, trace = taken(unit, rows, slice_lanes, give, take, seed)
        # All slices of each row are output, with zeros for elements that are not kept.
        padded = [np.pad(fill, (0, -len(fill) % lanes)) for fill in fills]
        kept = [np.pad(np.ones(len(fill), int), (0, -len(fill) % lanes)) for fill in fills]
        ends = np.cumsum([len(fill) for fill in padded]) // slice_lanes - 1
        shape = -1, slice_lanes
        assert (fields["elements"].reshape(shape) == np.concatenate(padded).reshape(shape)).all(), f"seed {seed}"
        flags = fields["keep"].astype(int)[:, None] >> np.arange(slice_lanes) & 1
        assert (flags == np.concatenate(kept).reshape(shape)).all(), f"seed {seed}"
        assert np.flatnonzero(fields["last"]).tolist() == ends.tolist(), f"seed {seed}"
        # A row is accepted together with its last slice.
        slices = lanes // slice_lanes
        assert moved(trace, "i")[0].tolist() == done[slices - 1::slices].tolist(), f"seed {seed}"
        if give == take == "none":
            assert done.tolist() == list(range(RowSplitter.latency, len(done) + RowSplitter.latency))


@pytest.mark.parametrize(("lanes", "slice_lanes"), WIDTHS)
def test_joiner(lanes, slice_lanes):
    unit = Unit(RowJoiner(lanes=lanes, slice_lanes=slice_lanes))
    for seed, (give, take) in enumerate((give, take) for give in STALLS for take in STALLS):
        fills = runs(seed)
        done, got, trace = taken(unit, beats(fills, beat_layout(slice_lanes)), lanes, give, take, seed)
        rows = unpack(beat_layout(lanes), beats(fills, beat_layout(lanes)))
        assert (got["keep"] == rows["keep"]).all(), f"seed {seed}"
        assert (got["last"] == rows["last"]).all(), f"seed {seed}"
        kept = (rows["keep"].astype(int)[:, None] >> np.arange(lanes) & 1) != 0
        shape = -1, lanes
        assert (got["elements"].reshape(shape)[kept] == rows["elements"].reshape(shape)[kept]).all(), f"seed {seed}"
        if give == take == "none":
            # A row takes one cycle for each of its slices, plus one more cycle.
            slices = [-(-int(keep).bit_count() // slice_lanes) for keep in rows["keep"]]
            assert done.tolist() == (np.cumsum([count + 1 for count in slices]) - 1).tolist()
            assert moved(trace, "i")[0][slices[0] - 1] + RowJoiner.latency == done[0]
