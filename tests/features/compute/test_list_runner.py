# amaranth: UnusedElaboratable=no
"""Test the list runner and list reader with a memory and stub units: hdl/features/compute/list_runner.py."""

import numpy as np
import pytest

from hdl.control.protocol import access_layout
from hdl.features.compute.instruction_reader import InstructionReader
from hdl.features.compute.layer_list import INSTRUCTION_WORDS, MAX_INSTRUCTIONS, Kind, Place
from hdl.features.compute.memory_access import MemoryAccess
from hdl.streams.stream import word_layout
from sim.golden import stream
from sim.golden.features.compute import layer_list
from sim.payload import pack
from sim.streams import stall_array
from sim.verilated.vectors import Feed
from tests.features.compute.lists import (
    CENTROIDS,
    END,
    SEQUENCES,
    WORDS,
    Command,
    draw_command,
    draw_list,
    engine,
    units,
)
from tests.refusals import refuses

LENGTH = {"length": 3, "state_base": 0}


def _fill(lanes, words):
    """Fill the whole activation memory with the given words."""
    last = np.arange(len(words)) == len(words) - 1
    units().lockstep(cycles=len(words) + 8, sinks={}, sources={
        f"walk_{lanes}__host_write": Feed(pack(access_layout(), {
            "address": np.zeros(1), "space": np.zeros(1), "count": np.array([len(words)])})),
        f"walk_{lanes}__host_words": Feed(pack(word_layout(), {"data": words, "last": last}))})


def _memory(generator, command, instructions):
    """Contents of an activation memory that holds a list, cut off at the end of the memory."""
    memory = generator.integers(1 << 32, size=WORDS[2], dtype=np.uint32)
    words = np.concatenate(instructions)
    end = min(command.list_base + len(words), WORDS[2])
    memory[command.list_base:end] = words[:end - command.list_base]
    return memory


def _listed(memory, base):
    """Return the instructions from ``base`` up to the first END, the maximum length or the end of memory."""
    instructions = []
    while len(instructions) < MAX_INSTRUCTIONS and base + INSTRUCTION_WORDS * (len(instructions) + 1) <= len(memory):
        instructions.append(memory[base + INSTRUCTION_WORDS * len(instructions):][:INSTRUCTION_WORDS])
        if instructions[-1][0] & 15 == Kind.END:
            break
    return instructions


def _run(lanes, command, memory, *, seed, kinds=("none", "none"), cycles=4_000, start=3):
    """Run a list with random job durations, compare every cycle, and return the fault and the number of jobs."""
    name, unit = f"walk_{lanes}", units()
    generator = np.random.default_rng(seed)
    units_ready = ("gemm", "vector", *(("centroid",) if lanes in CENTROIDS else ()),
                   *(("rows",) if lanes in SEQUENCES else ()))
    ready = {unit_name: stall_array(kinds[index % 2], cycles, seed=seed + index)
             for index, unit_name in enumerate(units_ready)}
    done = generator.random(cycles) < 0.1
    bad = (generator.random(cycles) < 0.01) & (kinds[0] != "none")
    settled = stall_array(kinds[1], cycles, seed=seed + 5)
    first_done, first_settled = stream.first_from(done | bad), stream.first_from(settled)
    memories = {Place.GRADIENTS: np.zeros(WORDS[0]), Place.WEIGHTS: np.zeros(WORDS[1]), Place.ACTIVATIONS: memory}
    jobs, wrong = engine(lanes).check(
        memories, base=command.list_base, length=command.length, offset=command.state_base)
    listed = _listed(memory, command.list_base)
    read = layer_list.read_cycles(lanes=lanes, answer=MemoryAccess.latency)

    # Expected cycles of the first pass over the list.
    now, count = start, 0
    for words in listed:
        now += read + layer_list.check_cycles(words, command.length, lanes=lanes, centroids=CENTROIDS.get(lanes, 0),
                                              sequences=lanes in SEQUENCES)
        count += 1
        if wrong is not None and count == len(jobs) + 1:
            break
    if wrong is not None and count == len(jobs):  # no END or a malformed END, or a target overlaps the list
        now += 2
    ended, fault, offers = now + 1, wrong, []
    runs = {unit_name: np.zeros(cycles, bool) for unit_name in ready}
    passed = np.zeros(cycles, bool)
    finished = None
    if wrong is None:
        now += 1
        for number, words in enumerate(listed):
            now += read + layer_list.job_cycles(words)
            offered = first_settled[min(now, cycles)]
            if words[0] & 15 == Kind.END:
                finished = offered
                break
            unit_name = Kind(int(words[0]) & 15).name.lower()
            taken, offered = offered, now
            while taken < cycles and not (settled[taken] and ready[unit_name][taken]):
                taken += 1
            offers.append((unit_name, number, offered, taken))
            now = first_done[min(taken + 1, cycles)]
            runs[unit_name][taken + 1:now + 1] = True
            if now < cycles and bad[now]:
                ended, fault = now + 1, number
                break
            passed[now:now + 1] = True
    assert max(now, finished or 0) < cycles, f"{seed=}"

    unit.reset()
    _fill(lanes, memory)
    trace = unit.lockstep(
        sources={}, sinks={f"{name}__{unit_name}": pattern for unit_name, pattern in ready.items()}, seed=seed,
        inputs={f"{name}__start": np.arange(cycles) == start, f"{name}__unit_done": done, f"{name}__unit_bad": bad,
                f"{name}__settled": settled,
                **{f"{name}__{field}": getattr(command, field) for field in ("list_base", "state_base", "length")}})
    note = f"{lanes=}, {seed=}, {command}"
    cycle = np.arange(cycles)
    np.testing.assert_array_equal(trace[f"{name}__bad"], (fault is not None) & (cycle >= ended), note)
    if fault is not None:
        assert (trace[f"{name}__number"][ended:] == fault).all(), note
    np.testing.assert_array_equal(trace[f"{name}__done"], cycle == (cycles if finished is None else finished), note)
    np.testing.assert_array_equal(trace[f"{name}__passed"], passed, note)
    for unit_name in ready:
        valid = np.zeros(cycles, bool)
        for target, _, offered, taken in offers:
            if target == unit_name:
                valid[offered:taken + 1] = settled[offered:taken + 1]
        np.testing.assert_array_equal(trace[f"{name}__{unit_name}__valid"], valid, note)
        np.testing.assert_array_equal(trace[f"{name}__{unit_name}_runs"], runs[unit_name], note)
    return fault, len(offers)


@pytest.mark.parametrize("kinds", [("none", "none"), ("geometric", "alternating"), ("alternating", "geometric")])
@pytest.mark.parametrize("lanes", [2, 4])
def test_lists(lanes, kinds):
    """Both passes over a list match in every cycle; invalid lists start no jobs, and a failed job ends a list."""
    faults, offers = 0, 0
    for number in range(20):
        seed = 1_000 * lanes + 100 * len(kinds[0]) + number
        generator = np.random.default_rng(seed)
        command = draw_command(generator)
        instructions = draw_list(generator, lanes, command, int(generator.integers(1, 5)), flaws=0.03, bits=0.02)
        if number % 5 == 4:  # the list for this seed has no END
            instructions = [*instructions[:-1], *instructions[:-1]]
        fault, count = _run(lanes, command, _memory(generator, command, instructions), seed=seed, kinds=kinds)
        faults, offers = faults + (fault is not None), offers + count
    assert faults > 2
    assert offers > 10


def test_ends_of_lists():
    """A list without END stops at the maximum length or the end of memory; the next list runs normally."""
    generator = np.random.default_rng(1)
    command = Command(list_base=0, **LENGTH)
    instruction = draw_list(generator, 4, Command(list_base=1024, **LENGTH), 1, flaws=0, bits=0)[0]
    assert WORDS[2] == MAX_INSTRUCTIONS * INSTRUCTION_WORDS
    memory = np.tile(instruction, MAX_INSTRUCTIONS)
    # Targets of instructions also overlap the list, but the missing END is detected first.
    assert _run(4, command, memory, seed=1, cycles=8_000) == (MAX_INSTRUCTIONS, 0)
    for base, fault in ((WORDS[2] - 16, 1), (WORDS[2], 0), (WORDS[2] - 32, 2)):
        assert _run(4, Command(list_base=base, **LENGTH), memory, seed=2) == (fault, 0)
    memory[-16:] = END
    assert _run(4, Command(list_base=WORDS[2] - 16, **LENGTH), memory, seed=3) == (None, 0)


def test_the_most_instructions():
    generator = np.random.default_rng(2)
    far = Command(list_base=1024, **LENGTH)
    while True:
        instruction = draw_list(generator, 2, far, 1, flaws=0, bits=0)[0]
        memory = np.tile(instruction, MAX_INSTRUCTIONS)
        memory[-16:] = END
        memories = {Place.GRADIENTS: np.zeros(WORDS[0]), Place.WEIGHTS: np.zeros(WORDS[1]), Place.ACTIVATIONS: memory}
        if engine(2).check(memories, base=0, length=3)[1] is None:
            break
    fault, count = _run(2, Command(list_base=0, **LENGTH), memory, seed=4, cycles=12_000)
    assert (fault, count) == (None, MAX_INSTRUCTIONS - 1)


def test_reset():
    """A reset at any point of a list does not affect the next one."""
    generator = np.random.default_rng(7)
    command = draw_command(generator)
    memory = _memory(generator, command, draw_list(generator, 4, command, 3, flaws=0, bits=0))
    for cut in (2, 5, 9, 12, 40, 100, 230):
        units().reset()
        _fill(4, memory)
        fields = {field: getattr(command, field) for field in ("list_base", "state_base", "length")}
        units().lockstep(
            sources={}, sinks={"walk_4__gemm": cut % 2 == 0, "walk_4__vector": True}, cycles=cut,
            inputs={f"walk_4__{name}": value for name, value in {"start": 1, "settled": 1, **fields}.items()})
        assert _run(4, command, memory, seed=cut)[0] is None


def test_constructor_errors():
    refuses("Lane count must be 2, 4 or 8, not 1", InstructionReader, rows=64, memory_rows=64, lanes=1)
