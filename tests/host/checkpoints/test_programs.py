# amaranth: UnusedElaboratable=no
"""Programs of nodes in checkpoints: both banks, pending edits, and comparison during a restore."""

import dataclasses

import numpy as np
import pytest

from hdl.control.protocol import Operation
from host.checkpoints.checkpoint import admit, examine, make
from host.checkpoints.device_frame import digest, forget_programs, load, read, verify, verify_programs
from host.checkpoints.rejections import ReadBackError, TooSmallError
from host.driver.command import Command
from tests.host.rings import CONFIGS, open_nodes, random
from tests.refusals import refuses

KEY = b"k" * 32
LENGTH = 128
LIVE = {"weights": [(0, LENGTH)], "gradients": [(0, LENGTH)]}


def program(tag, root):
    """Program with a BROADCAST in one queue and idle commands in the other two queues."""
    return [[[Command(operation=Operation.QUIESCE, tag=tag)],
             [Command(operation=Operation.BROADCAST, tag=tag + 1, rank=rank, size=2, root=root, length=LENGTH)],
             [Command(operation=Operation.QUIESCE, tag=tag + 2)]] for rank in range(2)]


@pytest.fixture(scope="module")
def ring():
    with open_nodes(2, config=CONFIGS["server"]) as (ring, _):
        yield ring


@pytest.fixture(scope="module")
def target():
    with open_nodes(2, config=CONFIGS["server"], latency=40) as (ring, _):
        yield ring


@pytest.fixture
def source(ring):
    """Nodes with different weights and a program in each bank; the second program runs from set 5 on."""
    generator = np.random.default_rng(3)
    for device in ring.devices:
        device.write_memory(1, 0, random(generator, LENGTH))
    ring.programs.load(program(1, 0), model=7)
    ring.programs.begin_set(4)
    ring.programs.run(collectives=1, first=4, traced=False)
    for device in ring.devices:
        device.write_memory(1, 0, random(generator, LENGTH))
    for _ in ring.programs.stage(program(10, 1)):
        pass
    number = max(device.read_fields("PROGRAM_SET")["latest"] for device in ring.devices) + 1
    ring.programs.edit(number=number, set=5)
    return ring


def weights(ring):
    return [device.read_memory(1, 0, LENGTH).tolist() for device in ring.devices]


def restore(frame, ring):
    """Load and verify a checkpoint frame, without first backing up all memories."""
    load(ring, admit(examine(make(None, frame, key=KEY), key=KEY), ring))
    verify(ring, frame)


def finish(ring, sets):
    results = []
    for first in sets:
        ring.programs.run(collectives=1, first=first, traced=False)
        results.append(weights(ring))
    return results


def test_an_edit_that_waits(source, target):
    """The first set after a restore uses the program of the pending edit, as it would on the source nodes."""
    before = weights(source)
    frame = read(source, LIVE)
    assert {**frame.fields["banks"], "latest": 0} == {"set": 5, "due": 5, "model": 8, "latest": 0}
    restore(frame, target)
    assert weights(target) == before
    banks = [device.read_fields("PROGRAM_BANK") for device in target.devices]
    assert [bank["pending"] for bank in banks] == [1, 1]
    assert target.programs.loaded == source.programs.loaded
    assert target.programs.staged == source.programs.staged
    expected = finish(source, (5, 6))
    assert expected[0] == [before[1]] * 2  # the previous program would have broadcast node 0's weights
    assert finish(target, (5, 6)) == expected
    assert [device.read_fields("PROGRAM_BANK")["bank"] for device in target.devices] == [
        1 - bank["bank"] for bank in banks]
    assert all(device.read_fields("PROGRAM_SET")["latest"] >= frame.fields["banks"]["latest"]
               for device in target.devices)


def test_a_set_that_is_run_again(source, target):
    """If the set of a pending edit is skipped, the previous program keeps running until that set is run."""
    source.programs.run(collectives=1, first=8, traced=False)
    frame = read(source, LIVE)
    assert (frame.fields["banks"]["set"], frame.fields["banks"]["due"]) == (9, 5)
    restore(frame, target)
    for ring in (source, target):  # write different weights to each node
        for rank, device in enumerate(ring.devices):
            device.write_memory(1, 0, np.full(LENGTH, rank + 1, np.float32))
    assert finish(target, (9, 5)) == finish(source, (9, 5))
    assert target.programs.loaded[0] == 8


def test_staged_without_an_edit(source, target):
    """A program staged without an edit is restored to the idle bank, where an edit can activate it."""
    for _ in source.programs.stage(program(20, 1)):
        pass
    frame = read(source, LIVE)
    assert frame.fields["banks"]["due"] is None
    restore(frame, target)
    assert target.programs.staged == source.programs.staged
    assert [device.read_fields("PROGRAM_BANK")["pending"] for device in target.devices] == [0, 0]
    number = 1 + max(device.read_fields("PROGRAM_SET")["latest"]
                     for ring in (source, target) for device in ring.devices)
    for ring in (source, target):
        ring.programs.edit(number=number, set=5)
    assert finish(target, (5,)) == finish(source, (5,))


def test_a_first_program_by_an_edit(source, target):
    """Nodes that have never run a program can have a pending edit that activates their first one."""
    for ring in (source, target):
        forget_programs(ring)
    for _ in source.programs.stage(program(40, 0)):
        pass
    number = 1 + max(device.read_fields("PROGRAM_SET")["latest"] for device in source.devices)
    source.programs.edit(number=number, set=source.programs.next_set)
    frame = read(source, LIVE)
    restore(frame, target)
    assert [device.read_fields("PROGRAM_BANK")["pending"] for device in target.devices] == [1, 1]
    assert target.programs.loaded[1] == source.programs.loaded[1] == [[[], [], []]] * 2
    assert finish(target, (source.programs.next_set,)) == finish(source, (source.programs.next_set,))


@pytest.mark.parametrize(("bank", "edited"), [("program", True), ("idle", True), ("idle", False)])
def test_other_words(source, target, monkeypatch, bank, edited):
    """A wrong word in a node's program is detected, with and without a pending edit, and the nodes can be restored to
    their previous state."""
    if not edited:
        for _ in source.programs.stage(program(10, 1)):
            pass
    forget_programs(target)
    target.programs.load(program(30, 1), model=3)
    before, expected = read(target, LIVE), digest(target, LIVE)
    frame = read(source, LIVE)
    device = target.devices[1]
    submit, first = device.submit_load_program, {"program": 2, "idle": 11}[bank]

    def disturbed(queue, commands, *, idle=False, **options):
        if idle and [command.tag for command in commands] == [first]:
            commands = [dataclasses.replace(commands[0], length=LENGTH - 32)]
        return submit(queue, commands, idle=idle, **options)

    monkeypatch.setattr(device, "submit_load_program", disturbed)
    refuses(f"READ_BACK: node 1, region {bank} must have the CRC-32 of what was sent to it", restore, frame, target,
            error=ReadBackError)
    monkeypatch.undo()
    forget_programs(target)
    load(target, before)
    assert digest(target, LIVE) == expected
    restore(frame, target)


def test_number(source, target):
    """A restore checks the program numbers, and whether the nodes have a program at all."""
    frame = read(source, LIVE)
    load(target, frame)
    for device in target.devices:
        device.load_program(0, [], model=99)
    with pytest.raises(ReadBackError, match=r"^READ_BACK: node 0, region program must have number 7, not 99$"):
        verify_programs(target, frame.fields)


def test_one_bank(source):
    frame = read(source, {"gradients": [(0, LENGTH)]})
    with open_nodes(2, config=CONFIGS["wide"]) as (ring, _):
        refuses("TOO_SMALL: node 0 must have two banks of programs", restore, frame, ring, error=TooSmallError)
