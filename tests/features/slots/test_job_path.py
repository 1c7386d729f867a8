# amaranth: UnusedElaboratable=no
"""Packet path of a node with two jobs, compared with the golden model."""

import random

import pytest

from hdl.features.slots.job_path import JobPath
from hdl.features.slots.job_table import JobFrame
from sim.golden.features.slots.slots import Wires
from sim.verilated.vectors import Unit
from tests.features.replay.columns import Columns
from tests.features.slots import jobs_model as golden
from tests.features.slots.wires import note_wires
from tests.refusals import refused

test_parameters = refused(JobPath, {"depth": 128, "frame": JobFrame(longest=37)}, [
    ({"frame": None}, "Frame must be a JobFrame, not None"),
    ({"depth": 4}, "Depth for packets must be an integer of at least 5, not 4"),
])


@pytest.mark.parametrize(("rank", "longest", "seed"), [(0, 20, 0), (0, 130, 1), (1, 20, 2), (2, 20, 3)])
def test_path(rank, longest, seed):
    """All ports match the model in every cycle, for any timing of words, interrupted packets and resets."""
    frame, depth, job = golden.Frame(longest), 60, rank % 2
    unit = Unit(JobPath(depth=depth, frame=JobFrame(longest=longest)), name=f"JobPath{longest}")
    generator = random.Random(seed)
    model, columns, seen = golden.JobPath(depth=depth, frame=frame), Columns(), set()
    sending, comes = golden.JobTable(frame), golden.JobTable(frame)
    waiting, coming, time = [], 0, 700
    for _ in range(12_000):
        time += generator.choice([0, 1, 2]) if generator.random() < .002 else 1
        if not waiting:
            waiting = [(generator.getrandbits(32), 0) for _ in range(generator.randrange(1, 14))]
            waiting.append((generator.getrandbits(32), 1))
        offer = waiting[0] if generator.random() < .3 else None
        coming = generator.randrange(longest) if not coming and generator.random() < .1 else max(coming - 1, 0)
        came = own = Wires(0, generator.getrandbits(32), 0, generator.getrandbits(1), generator.getrandbits(8))
        if coming:
            came = Wires(1, generator.getrandbits(32), generator.getrandbits(1), 0, generator.getrandbits(8))
        elif generator.random() < .1:
            came = Wires(1, generator.getrandbits(32), generator.getrandbits(1), 1, generator.getrandbits(8))
        if generator.random() < .2:
            own = Wires(1, generator.getrandbits(32), generator.getrandbits(1), 1, generator.getrandbits(8))
        line = generator.getrandbits(1)
        flush, clear, goes = generator.random() < .002, generator.random() < .0005, generator.random() < .8
        slot, later = sending.slot, comes.slot
        slots = {"slot": slot, "coming": later if rank == 0 else slot}
        note_wires(columns, generator, model, came, own, line)
        columns.note(wraps=rank == 0, flush=flush, clear=clear, goes=goes, lost=model.lost, left=model.left,
                     whole=model.whole, word=came.data | came.last << 32,
                     arrived=came.valid and not came.kind and slots["coming"].of == job,
                     **{name: state.bits(job) for name, state in slots.items()})
        columns.stream("i", offer, model.ready)
        if offer is not None and model.ready:
            waiting.pop(0)
        seen |= {model.lost, ("left", model.left), (slot.of, model.wires.valid and not model.wires.kind)}
        model.step(came=came, own=own, line=line, job=job, wraps=int(rank == 0), goes=int(goes), flush=int(flush),
                   clear=int(clear), entering=offer, **slots)
        sending.step(time=time)
        comes.step(time=time, shift=60)
    assert len(seen) >= 8, seen
    columns.compare(unit)
