# amaranth: UnusedElaboratable=no
"""ROWS and SOFTMAX, the functions on sequences, in a node: hdl/features/compute/engine.py."""

import numpy as np

from hdl.control.protocol import EventStatus
from hdl.features.compute.layer_list import (
    PADDING,
    Kind,
    Place,
    RowFunction,
    VectorProgram,
    row_layout,
    vector_layout,
)
from hdl.features.compute.memory_access import MemoryAccess
from sim.golden.features.compute import layer_list, row_unit
from sim.golden.features.compute.compute import pack
from sim.golden.features.compute.row_cycles import RowCycles
from sim.golden.features.compute.row_instruction import Rows
from sim.golden.features.compute.vector_cycles import VectorCycles
from tests.features.compute.engine_requests import CONFIG, LIST, PLACES, golden, node_unit, run_list
from tests.features.compute.lists import END, WORDS, at

ROWS = 6


def sequence():
    """Memories and instructions that use every row function, in-place results and padding."""
    generator = np.random.default_rng(9)
    memories = {space: generator.standard_normal(words).astype(np.float32).view(np.uint32)
                for space, words in zip(PLACES, WORDS, strict=True)}
    activations = memories[Place.ACTIVATIONS]
    activations[701:701 + 2 * ROWS:2] = [3, 0, 6, 3, 3, 1]
    activations[720:720 + ROWS] = [4, PADDING, 0, 8, PADDING, 2]
    x, start, normal, sums, result, weights, third = (
        {name: at(Place.ACTIVATIONS, 72 * number), f"stride_{name}": 12} for number, name in enumerate(
            ("x", "start", "second", "target", "target", "y", "third")))
    scale, shift, numbers = at(Place.WEIGHTS, 96), at(Place.WEIGHTS, 108), at(Place.ACTIVATIONS, 701)
    share = {"factor": int(np.float32(1 / 9).view(np.uint32)), "epsilon": int(np.float32(1e-5).view(np.uint32))}

    def rows(function, **fields):
        return pack(row_layout(), {"kind": Kind.ROWS, "function": function, "columns": 9, **share, **fields})

    def vector(function, **fields):
        return pack(vector_layout(), {"kind": Kind.VECTOR, "function": function, "columns": 9, **fields})

    norm = {"scale": scale, "shift": shift, "deviation": at(Place.GRADIENTS, 200)}
    instructions = [
        rows(RowFunction.GATHER, x=at(Place.WEIGHTS, 0), stride_x=12, y=numbers, stride_y=2, count=7, **start,
             started=1, target=x["x"], stride_target=12),
        rows(RowFunction.NORM, **x, **start, **normal, **sums, started=1, third=x["x"], stride_third=12, **norm),
        vector(VectorProgram.SOFTMAX, source=sums["target"], stride_source=12, target=weights["y"],
               stride_target=12),
        vector(VectorProgram.CROSS_ENTROPY, source=sums["target"], stride_source=12,
               labels=at(Place.ACTIVATIONS, 720), stride_labels=1, **result, loss=at(Place.ACTIVATIONS, 740)),
        rows(RowFunction.SOFTMAX_BACK, x=result["target"], stride_x=12, **weights, **result),
        rows(RowFunction.NORM_BACK, x=result["target"], stride_x=12, y=normal["second"], stride_y=12, started=1,
             start=x["x"], stride_start=0, second=third["third"], stride_second=12, **sums, **norm),
        rows(RowFunction.CLEAR, rows=7, target=at(Place.GRADIENTS, 0), stride_target=12),
        rows(RowFunction.SCATTER, x=sums["target"], stride_x=12, y=numbers, stride_y=2, count=7,
             target=at(Place.GRADIENTS, 0), stride_target=12),
        rows(RowFunction.ADD, **x, start=sums["target"], stride_start=12, started=1, target=x["x"], stride_target=12),
        rows(RowFunction.SCALE, **x, **result, **norm)]
    words = np.concatenate([*instructions, END])
    activations[LIST:LIST + len(words)] = words
    return memories, instructions


def unit_cycles(memories):
    """Total cycles that the units need for all instructions, with memories that never stall."""
    memories, total = {space: memory.copy() for space, memory in memories.items()}, 0
    for instruction in golden.check(memories, base=LIST, length=ROWS)[0]:
        job = layer_list.job(instruction, lanes=CONFIG.lanes, memory_rows=max(WORDS) // CONFIG.lanes)
        if isinstance(instruction, Rows):
            job = row_unit.Job(**{name: (value["place"], value["row"]) if isinstance(value, dict) else value
                                  for name, value in job.items()})
            copies = [memory.copy().reshape(-1, CONFIG.lanes) for memory in memories.values()]
            total += RowCycles(answer=MemoryAccess.latency).job(job, row_unit.run(job, copies).blocks)
        else:
            softmax = instruction.labels is None
            total += VectorCycles(answer=MemoryAccess.latency).job(
                job["rows"], job["columns"], loss_lane=job.get("loss_lane", 0), softmax=softmax)
            total += not softmax  # one more cycle, until the loss is in memory
        assert instruction.run(memories)
    return total


def test_every_function():
    """Every sequence function gives the right bits and cycles; an invalid row number ends the list."""
    node = node_unit()
    memories, instructions = sequence()
    for number, outcome in ((None, EventStatus.OK), (7, EventStatus.BAD_INSTRUCTION)):
        local = {space: memory.copy() for space, memory in memories.items()}
        if number is not None:
            local[Place.ACTIVATIONS][701] = number
        ended, (command, products, functions) = run_list(node, local, LIST, length=ROWS)
        assert (ended.status, products) == (outcome, 0)
        if outcome is EventStatus.OK:
            assert functions == unit_cycles({**local, **memories})
            assert command - functions == layer_list.command_cycles(
                [*instructions, END], ROWS, lanes=CONFIG.lanes, answer=MemoryAccess.latency, centroids=16,
                sequences=True)
