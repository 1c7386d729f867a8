# amaranth: UnusedElaboratable=no
"""Path of slot packets through a node, compared with its golden model: hdl/features/slots/path.py."""

import random

import pytest

from hdl.features.slots.path import SlotPath
from sim.golden.features.slots.messages import check_of
from sim.golden.features.slots.slots import Path, Wires
from sim.verilated.vectors import Unit
from tests.features.replay.columns import Columns
from tests.features.slots.wires import note_wires
from tests.refusals import refused

DEPTH = 40

test_parameters = refused(SlotPath, {}, [
    ({"depth": 4}, "Depth for packets must be an integer of at least 5, not 4"),
    ({"depth": 5, "message_depth": True}, "Depth for messages must be an integer of at least 5, not True"),
])


def packet(generator, words):
    return [(generator.getrandbits(32) & ~15 | generator.choice([1, 1, 3]), int(n == words - 1))
            for n in range(words)]


def test_check():
    """A message's check covers only its own words, regardless of preceding control words or packets."""
    generator = random.Random(1)
    for length in (1, 2, 9):
        model, sent, hush = Path(depth=DEPTH, message_depth=20), [], 0
        words = [(generator.getrandbits(32), int(n == length - 1)) for n in range(length)]
        entering = list(words)
        for cycle in range(60):
            own, hush = Wires() if hush else Wires(1, generator.getrandbits(32), 0, 1, 0), model.hush
            model.step(own=own, starts=cycle == 30, drives=1, message=1,
                       entering=(None, entering.pop(0) if entering else None))
            if model.wires.valid and not model.wires.kind:
                sent.append((cycle, model.wires.data, model.wires.last))
        assert [beat[1:] for beat in sent] == [*((word, 0) for word, _ in words), (check_of(w for w, _ in words), 1)]
        assert sent[0][0] == 30 + SlotPath.latency - 1
        assert sent[-1][0] == sent[0][0] + length + 1


@pytest.mark.parametrize("seed", range(4))
def test_lockstep(seed):
    """All ports match the model in every cycle, for arbitrary slot modes and words of all kinds."""
    unit = Unit(SlotPath(depth=DEPTH, message_depth=20))
    generator = random.Random(seed)
    model, columns = Path(depth=DEPTH, message_depth=20), Columns()
    waiting, coming, mode, seen, hush = [[], []], [], 0, set(), 0
    for cycle in range(15_000):
        if cycle % 500 == 0:
            rate = generator.choice([.2, .9, 1])
        starts = generator.random() < .05
        mode = generator.choice([1, 5, 2, 6, 0, 3]) if starts else mode
        offers = []
        for n, words in enumerate(waiting):
            if not words:
                words += packet(generator, generator.randrange(2 - n, (15, 10)[n]))
            offers.append(words[0] if generator.random() < rate else None)
        if not coming and generator.random() < .1:
            coming = packet(generator, generator.randrange(1, 15))
        came, own = Wires(0, generator.getrandbits(32), 0, generator.getrandbits(1), generator.getrandbits(8)), Wires(
            check=generator.getrandbits(8))
        if generator.random() < .1:
            came = Wires(1, generator.getrandbits(32), generator.getrandbits(1), 1, generator.getrandbits(8))
        elif coming and generator.random() < .9:
            came = Wires(1, *coming.pop(0), 0, generator.getrandbits(8))
        if generator.random() < .2 and not hush:
            own = Wires(1, generator.getrandbits(32), generator.getrandbits(1), 1, generator.getrandbits(8))
        line = generator.getrandbits(1)
        passes, arrived, heard = model.comes(came, passes=mode >> 1 & 1, rank=seed)
        note_wires(columns, generator, model, came, own, line)
        columns.note(starts=starts, mode=mode, rank=seed, lost=model.lost, left=model.left,
                     hush=model.hush, whole=model.senders[0].whole, message_whole=model.senders[1].whole)
        for name, sender, offer in zip(("i", "message_i"), model.senders, offers, strict=True):
            columns.stream(name, offer, sender.ready)
        columns.note(arrived=arrived, heard=heard, word=came.data | came.last << 32)
        hush = model.hush
        for n, sender in enumerate(model.senders):
            if offers[n] is not None and sender.ready:
                waiting[n].pop(0)
        seen |= {model.lost, (passes, heard),
                 ("sent", *(sender.word is None for sender in model.senders))}
        model.step(came=came, own=own, line=line, starts=starts, drives=mode & 1, passes=mode >> 1 & 1,
                   message=mode >> 2, rank=seed, entering=offers)
    assert len(seen) >= 8, seen
    columns.compare(unit)
