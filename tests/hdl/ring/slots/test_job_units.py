# amaranth: UnusedElaboratable=no
"""Slots of two jobs, their rooms and their path, each against its golden model: hdl/ring/slots/job_*.py."""

import random
import re

import pytest

from hdl.config import NodeConfig
from hdl.ring.header import packet_words
from hdl.ring.slots.job_link import JobLink
from hdl.ring.slots.job_path import JobPath
from hdl.ring.slots.job_rooms import RoomLaps
from hdl.ring.slots.job_table import JobFrame, JobTable
from sim.golden import slot_jobs as golden
from sim.golden.control_words import Message
from sim.golden.slots import Wires
from sim.verilated.vectors import Unit
from tests.hdl.ring.replay.columns import Columns
from tests.hdl.ring.slots.wires import FORWARD

FRAMES = (5, 37, 268)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: JobFrame(longest=1), "Longest packet must be an integer from 2 to 1000 words, not 1"),
    (lambda: JobFrame(longest=True), "Longest packet must be an integer from 2 to 1000 words, not True"),
    (lambda: JobTable(frame=37), "Frame must be a JobFrame, not 37"),
    (lambda: JobPath(depth=128, frame=None), "Frame must be a JobFrame, not None"),
    (lambda: JobPath(depth=4, frame=JobFrame(longest=37)),
     "Depth for packets must be an integer of at least 5, not 4"),
    (lambda: JobLink(config=NodeConfig(slots=True, replay=True, queues=2)),
     "Node with ends of links for jobs must have 2 jobs, not 1"),
])
def test_parameters(make, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


@pytest.mark.parametrize("longest", [*FRAMES, 2, 70, 136, 540, 1000])
def test_frames(longest):
    """Superframes by hand, and all as the golden model has them."""
    frame, model = JobFrame(longest=longest), golden.Frame(longest)
    shape = (frame.slot, frame.cycles, frame.pairs, frame.window, frame.kept)
    assert shape == (model.slot, model.cycles, model.pairs, model.window, model.kept)
    assert shape == {268: (272, 4096, 7, 288, 2), 37: (41, 1024, 9, 286, 4)}.get(longest, shape)
    assert frame.control == (4, frame.window - 8)
    assert longest < 37 or frame.way >= 236
    assert frame.window + 2 * frame.pairs * frame.slot == frame.cycles


def test_frame_of():
    config = NodeConfig(segment=64)
    assert JobFrame.of(config).longest == packet_words(64)


def times(generator, cycles, frame):
    """TIMEs that go on by 0 to 2 cycles, and jump, also out of the range of numbers."""
    time = generator.getrandbits(32)
    for cycle in range(cycles):
        yield time
        time += generator.choice([0, 1, 2]) if generator.random() < .01 else 1
        if cycle % 5000 == 0:
            time = generator.choice([generator.getrandbits(32), -600, time + frame.slot])
        time %= 1 << 32


@pytest.mark.parametrize("longest", FRAMES)
@pytest.mark.parametrize("job", range(2))
def test_table(longest, job):
    """Every port in every cycle, with TIMEs that jump and become invalid."""
    unit = Unit(JobTable(frame=JobFrame(longest=longest)), name=f"JobTable{longest}")
    generator = random.Random(longest + job)
    model, columns, slots = golden.JobTable(golden.Frame(longest)), Columns(), set()
    shift, valid = 0, 1
    for time in times(generator, 20_000, model._frame):
        if generator.random() < .0005:
            shift, valid = generator.choice([0, 17, 300]), generator.random() < .8
        given = {"time": time, "valid": int(valid), "shift": shift}
        columns.note(now=time, valid=valid, shift=shift, job=job, slot=model.slot.bits(job), window=model.window,
                     opens=model.opens, control=model.control, number=model.number)
        slots.add((model.slot.of, model.slot.pair))
        model.step(**given)
    assert len(slots) >= 6
    columns.compare(unit)


@pytest.mark.parametrize("rank", range(3))
def test_rooms(rank):
    """Every port in every cycle, with words of all kinds, windows that open at any time, and resets."""
    unit = Unit(RoomLaps())
    generator = random.Random(rank)
    model, columns, granted, offered = golden.RoomLaps(), Columns(), 0, 0
    word, number, window, size = None, 0, 0, 4
    for _ in range(20_000):
        if word is None and generator.random() < .3:
            kind = generator.choice([11, 12, 11, 12, 6])
            data = kind | (number if generator.random() < .8 else generator.getrandbits(6)) << 12
            data |= generator.getrandbits(10) << 18 | generator.choice([0] * 9 + [16, 1 << 29])
            word = Message(data, int(generator.random() < .95), int(generator.random() < .95))
        opens = int(generator.random() < .02)
        if opens:
            number, window, size = generator.getrandbits(6), 1, generator.choice([4] * 9 + [0])
        elif generator.random() < .01:
            window = 0
        ready, room, reset = generator.random() < .6, generator.getrandbits(5), generator.random() < .002
        columns.stream("i", None if word is None else word.data | word.first << 32 | word.last << 33,
                       model.ready(ready))
        columns.stream("o", None if model.o is None else model.o.data | model.o.first << 32 | model.o.last << 33,
                       ready)
        columns.note(place=rank | size << 4, room=room, window=window, opens=opens, number=number,
                     granted=model.granted, reset_link=reset)
        columns.value("allowed", model.allowed if model.granted else None)
        granted, offered, takes = granted + model.granted, offered + (model.o is not None), model.ready(ready)
        model.step(word=word, ready=int(ready), rank=rank, size=size, room=room, window=window, opens=opens,
                   number=number, reset_link=int(reset))
        word = None if takes else word
    assert granted > 200
    assert offered > 200
    columns.compare(unit)


@pytest.mark.parametrize(("rank", "longest", "seed"), [(0, 20, 0), (0, 130, 1), (1, 20, 2), (2, 20, 3)])
def test_path(rank, longest, seed):
    """Every port in every cycle, with words of all kinds at all times, packets that are cut off, and resets."""
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
        line, back = generator.getrandbits(1), generator.getrandbits(1)
        flush, clear, goes = generator.random() < .002, generator.random() < .0005, generator.random() < .8
        slot, later = sending.slot, comes.slot
        given = {"slot": slot, "coming": later if rank == 0 else slot}
        for name, wires in (("ring_i", came), ("ring_o", model.wires), ("transmitter", own),
                            ("receiver", Wires(came.valid & came.kind, came.data, came.last, came.kind, came.check))):
            columns.note(**{f"{name}__{wire}": getattr(wires, wire) for wire in FORWARD})
        columns.note(ring_i__line=model.line, receiver__line=line, ring_o__line=back, transmitter__line=back,
                     wraps=rank == 0, flush=flush, clear=clear, goes=goes, lost=model.lost, left=model.left,
                     whole=model.whole, word=came.data | came.last << 32,
                     arrived=came.valid and not came.kind and given["coming"].of == job,
                     **{name: state.bits(job) for name, state in given.items()})
        columns.stream("i", None if offer is None else offer[0] | offer[1] << 32, model.ready)
        if offer is not None and model.ready:
            waiting.pop(0)
        seen |= {model.lost, ("left", model.left), (slot.of, model.wires.valid and not model.wires.kind)}
        model.step(came=came, own=own, line=line, job=job, wraps=int(rank == 0), goes=int(goes), flush=int(flush),
                   clear=int(clear), entering=offer, **given)
        sending.step(time=time)
        comes.step(time=time, shift=60)
    assert len(seen) >= 8, seen
    columns.compare(unit)
