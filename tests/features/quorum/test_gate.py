# amaranth: UnusedElaboratable=no
"""Gates in front of the compute queue and the update queue: hdl/features/quorum/gate.py."""

import random

import pytest

from hdl.control.protocol import Operation, command_layout
from hdl.features.quorum.gate import ComputeGate, UpdateGate
from hdl.memory import READ_LATENCY
from tests.hdl import pysim

ELEMENTS, STRIDE, BASE = 8192, 512, 1024
#: Maximum number of cycles that a gate may take to offer a command.
PATIENCE = 50


class Player:
    """Driver for a gate: stands in for the command queue before the gate and for the engines after it."""

    def __init__(self, ctx, unit, generator):
        self.ctx, self.unit, self.gate, self.generator = ctx, unit, unit.gate, generator

    def give(self, operation, **fields):
        """Offer a command to the gate with random values in unspecified fields, and return all fields."""
        word = command_layout().from_bits(self.generator.getrandbits(command_layout().size))
        command = {name: word[name] for name, _ in command_layout()}
        command |= {"operation": operation, "gradient_base": BASE, **fields}
        self.ctx.set(self.gate.i.payload, command)
        self.ctx.set(self.gate.i.valid, 1)
        return command

    async def offered(self):
        """Wait until the gate offers the command, and return the number of cycles."""
        for cycle in range(PATIENCE):
            if self.ctx.get(self.gate.o.valid):
                return cycle
            assert not self.ctx.get(self.gate.i.ready)
            await self.ctx.tick()
        raise AssertionError(f"No command in {PATIENCE} cycles")

    async def take(self, **watched):
        """Check that the offered command is stable for some cycles, accept it, and return its fields."""
        first = self.fields()
        for _ in range(self.generator.randrange(4)):
            await self.ctx.tick()
            assert self.fields() == first
            assert not self.ctx.get(self.gate.i.ready)
        self.ctx.set(self.gate.o.ready, 1)
        assert self.ctx.get(self.gate.i.ready)
        for name, value in watched.items():
            assert self.ctx.get(getattr(self.unit, name)) == value, name
        await self.ctx.tick()
        self.ctx.set(self.gate.o.ready, 0)
        self.ctx.set(self.gate.i.valid, 0)
        return first

    async def end(self, *, good=1, **watched):
        """Signal the end of the command, and check all ``watched`` outputs."""
        await self.ctx.tick().repeat(1 + self.generator.randrange(3))
        self.ctx.set(self.gate.ended, 1)
        self.ctx.set(self.gate.good, good)
        for name, value in watched.items():
            assert self.ctx.get(getattr(self.unit, name)) == value, name
        await self.ctx.tick()
        self.ctx.set(self.gate.ended, 0)

    def fields(self):
        payload = self.gate.o.payload
        return {name: self.ctx.get(payload[name]) for name, _ in command_layout()}


def simulate(unit, run, *, seed):
    async def testbench(ctx):
        ctx.set(unit.stride, STRIDE)
        await run(ctx, Player(ctx, unit, random.Random(seed)))

    pysim.simulate(unit, testbench)


@pytest.mark.parametrize("seed", range(4))
def test_compute(seed):
    """A COMPUTE command of a round waits for a slot, or does nothing if the round is over; others are not held back.
    """
    async def run(ctx, player):
        unit, generator = player.unit, player.generator
        for _ in range(60):
            of_round, over, stopped = (generator.random() < part for part in (0.8, 0.3, 0.1))
            slot, waits = generator.getrandbits(1), generator.randrange(8) if generator.getrandbits(1) else 0
            operation = Operation.COMPUTE if generator.random() < 0.9 else Operation.SPARSIFY
            ctx.set(unit.over, over)
            ctx.set(unit.stopped, stopped)
            ctx.set(unit.room, not waits)
            ctx.set(unit.slot, slot)
            command = player.give(operation, round=int(of_round))
            if not of_round or operation != Operation.COMPUTE:
                assert await player.offered() == 0
                assert await player.take(begun=0) == command
                await player.end(ended=0)
                continue
            assert ctx.get(unit.tag) == command["number"]
            skips = over or stopped
            if waits and not skips:
                for _ in range(waits):
                    await ctx.tick()
                    assert not ctx.get(player.gate.o.valid)
                # A free slot or the end of the round ends the wait of a command.
                skips = generator.random() < 0.3
                ctx.set(unit.over if skips else unit.room, 1)
            cycles = await player.offered()
            assert cycles == unit.latency
            # Once the gate offers the command, changes of the slot or of the round have no effect on it.
            ctx.set(unit.slot, generator.getrandbits(1))
            ctx.set(unit.over, 1)
            actual = await player.take(begun=not skips, into=slot)
            want = {**command, "gradient_base": BASE + slot * STRIDE}
            if skips:
                want |= {"length": 0, "duration": 0}
            assert actual == want
            good = generator.getrandbits(1)
            await player.end(good=good, ended=not skips)

    simulate(ComputeGate(elements=ELEMENTS), run, seed=seed)


@pytest.mark.parametrize(("seed", "lanes"), [(0, 1), (1, 4), (2, 8)])
def test_update(seed, lanes):
    """A FUSED_UPDATE of a round waits for its scale and consumes the node's gradients; others are not held back."""
    async def run(ctx, player):
        unit, generator, port = player.unit, player.generator, player.unit.scale_read
        for _ in range(60):
            of_round = generator.random() < 0.8
            operation = Operation.FUSED_UPDATE if generator.random() < 0.9 else Operation.ALL_GATHER
            fresh, late, slot = generator.getrandbits(1), generator.getrandbits(1), generator.getrandbits(1)
            index, default, scale = generator.getrandbits(9), generator.getrandbits(32), generator.getrandbits(32)
            ctx.set(unit.work, {"fresh": fresh, "late": late, "fresh_slot": slot, "late_slot": 1 - slot,
                                "weight": 3, "index": index, "masks": generator.getrandbits(32)})
            ctx.set(unit.given, default)
            command = player.give(operation, round=int(of_round))
            if not of_round or operation != Operation.FUSED_UPDATE:
                assert await player.offered() == 0
                assert await player.take(scale=default) == command
                await player.end(finished=0)
                continue
            cycles = 1
            await ctx.tick()
            assert ctx.get(port.valid)
            assert ctx.get(port.row) == index // lanes
            for _ in range(generator.randrange(3)):
                await ctx.tick()
            ctx.set(port.ready, 1)
            await ctx.tick()
            ctx.set(port.ready, 0)
            await ctx.tick().repeat(READ_LATENCY - 1)
            ctx.set(port.response, 1)
            ctx.set(port.elements, [scale if n == index % lanes else generator.getrandbits(32) for n in range(lanes)])
            await ctx.tick()
            ctx.set(port.response, 0)
            ctx.set(port.elements, [generator.getrandbits(32) for _ in range(lanes)])
            cycles += READ_LATENCY + 1 + await player.offered()
            assert cycles == unit.latency
            source = slot if fresh else 1 - slot if late else 2
            assert await player.take(scale=scale) == {**command, "gradient_base": BASE + source * STRIDE}
            good = generator.getrandbits(1)
            await player.end(good=good, finished=good)

    simulate(UpdateGate(elements=ELEMENTS, lanes=lanes), run, seed=seed)
