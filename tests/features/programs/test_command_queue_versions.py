# amaranth: UnusedElaboratable=no
"""Weight versions in a node's command queues: versions of program commands, and rejected commands."""

import random

import cocotb

from hdl.control.protocol import EventStatus, Operation
from sim import regression
from sim.streams import cycles
from tests.features.programs.test_command_queue_programs import Bench, begin, command_queue, run_of
from tests.hdl.control.programs import random_program


def layers_behind(generator, **changes):
    """Return programs for two layers, with forward, backward and update commands; layer 1 has two weight copies."""
    def command(tag, operation, region, **fields):
        (made,) = random_program(generator, int(operation == Operation.FUSED_UPDATE), 1, tag=tag)
        return {**made, "operation": operation, "region": region, "apart": int(region == 1),
                "alternate": int(region == 1), **fields, **changes.get(f"tag_{tag}", {})}

    local, update = Operation.MASK, Operation.FUSED_UPDATE
    return [
        [command(0, local, 1, after_0=2, lag_0=2), command(1, local, 2, after_0=1, lag_0=1),
         command(2, local, 2), command(3, local, 1, after_0=2, lag_0=1)],
        [command(10, update, 2, after_0=3), command(11, update, 1, after_0=4)],
    ]


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def weights_have_versions(dut):
    """Commands of two layers get the weight version their pass needs; a wrong version ends the run."""
    await begin(dut)
    bench = Bench(dut, 8)
    generator = random.Random(8)
    received = bench.receive()

    async def play(passes, *, first, **changes):
        await bench.load(layers_behind(generator, **changes))
        received.clear()
        bench.forget()
        before = int(dut.trace_pointer.value)
        await bench.run.send([run_of(passes, first=first, parity=first % 2)])
        await bench.idle()
        await cycles(dut, 60)
        records = (await bench.records())[-(int(dut.trace_pointer.value) - before):]
        versions = {tag: [record["version"] for record in records if (record["tag"], record["end"]) == (tag, 0)]
                    for tag in (0, 1, 2, 3, 10, 11)}
        failed = [(event["tag"], event["status"], event["detail"]) for event in received if event["status"]]
        return versions, failed

    def right(passes, first):
        ahead = [*range(first, first + passes)]
        behind = [max(0, number - 1) for number in ahead]
        return {0: behind, 1: ahead, 2: ahead, 3: behind, 10: passes * [0], 11: passes * [0]}

    for long in (1, 400):  # number of cycles that an update takes
        bench.duration = lambda queue, command, long=long: generator.choice([0, 5, 60]) + queue * long
        for first, passes in ((0, 7), (7, 1), (8, 4), (0, 2), (2, 3), (0, 1), (1, 1), (2, 2)):
            assert await play(passes, first=first) == (right(passes, first), [])
    # The second layer fails if it does not wait for its update from the previous pass.
    bench.duration = lambda queue, command: 20 + 2000 * queue
    early = {"tag_1": {"after_0": 0}}
    assert (await play(3, first=0, **early))[1] == [(1, EventStatus.STALE, 0 | 1 << 16)]
    # The first layer may wait for the update of an earlier pass only if it has two weight copies.
    assert (await play(3, first=0, tag_0={"after_0": 2, "lag_0": 1}))[1] == []
    assert (await play(3, first=0, tag_0={"apart": 0}))[1] == [(0, EventStatus.STALE, 0 | 1 << 16)]
    # A run must start at the pass number that the weight versions have reached.
    assert await play(2, first=0) == (right(2, 0), [])
    assert (await play(2, first=3))[1] == [(1, EventStatus.STALE, 2 | 3 << 16)]
    assert (await play(2, first=1))[1] == [(0, EventStatus.STALE, 2 | 0 << 16)]
    # A failed update is not counted, and region 0 stands for no region.
    bench.status = lambda queue, command: EventStatus.BAD_CRC if command["tag"] == 10 else EventStatus.OK
    assert [failed[:2] for failed in (await play(1, first=0))[1]] == [(10, EventStatus.BAD_CRC)]
    bench.status = lambda queue, command: EventStatus.OK
    assert (await play(1, first=1))[1] == [(1, EventStatus.STALE, 0 | 1 << 16)]
    none = {f"tag_{tag}": {"region": 0} for tag in (0, 1, 2, 3)}
    assert await play(2, first=40, **none) == ({**right(2, 40), **{tag: [0, 0] for tag in range(4)}}, [])
    assert await play(3, first=0) == (right(3, 0), [])


def test_versions():
    regression.run(command_queue(), module=__name__, testcase=["weights_have_versions"])
