# amaranth: UnusedElaboratable=no
"""Compare the instruction checker with the golden model: hdl/features/compute/instruction_checker.py."""

import numpy as np
import pytest

from hdl.features.compute.instruction_checker import checked_layout
from hdl.features.compute.layer_list import (
    BASE_BITS,
    Initial,
    Kind,
    Place,
    RowFunction,
    VectorProgram,
    centroid_layout,
    gemm_layout,
    row_layout,
    vector_layout,
)
from sim.golden import stream
from sim.golden.features.compute import layer_list
from sim.golden.features.compute.compute import pack
from sim.payload import from_int
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed
from tests.features.compute.lists import (
    CENTROIDS,
    END,
    OWNERS,
    ROWS,
    SEQUENCES,
    WORDS,
    Command,
    at,
    draw_command,
    draw_list,
    golden_list,
    units,
)

LISTS = 60


def _beats(instructions):
    """Payloads of the input stream: the words of each instruction, followed by the instruction's index."""
    return np.array([[*words, number] for number, words in enumerate(instructions)], np.uint32)


def _run(lanes, command, instructions, *, source, sink, seed):
    """Check an instruction list; return the number of valid instructions and any error of the next one.

    The error is a malformed instruction or an overlap.
    """
    name, unit = f"checker_{lanes}", units()
    cycles = 90 * (len(instructions) + 1) if source == sink == "none" else 1_500
    willing, ready = stall_array(source, cycles, seed=seed), stall_array(sink, cycles, seed=seed + 1)
    # Instructions that follow an invalid one are not offered.
    jobs, fault = golden_list(lanes, command, instructions)
    ends_wrong = fault is not None and fault == len(jobs)
    offered = instructions[:len(jobs) + 1]
    unit.reset()
    trace = unit.lockstep(
        sources={f"{name}__i": Feed(_beats(offered), willing)}, sinks={f"{name}__o": ready}, seed=seed, inputs={
            f"{name}__check": 1, f"{name}__list_base": command.list_base, f"{name}__state_base": command.state_base,
            f"{name}__length": command.length})
    note = f"{lanes=}, {seed=}, {command}"
    feed, first_ready = stream.Feed(len(offered), willing), stream.first_from(ready)
    want, free = np.full(cycles, -1), 0
    for number, words in enumerate(offered):
        begins = max(feed.offered, free)
        verdict = min(begins + layer_list.check_cycles(words, command.length, lanes=lanes,
                                                        centroids=CENTROIDS.get(lanes, 0),
                                                        sequences=lanes in SEQUENCES), cycles)
        taken = first_ready[verdict]
        want[verdict:taken + 1] = number
        free = taken + 1
        feed.take(taken)
    np.testing.assert_array_equal(trace[f"{name}__o__valid"], want >= 0, note)
    np.testing.assert_array_equal(trace[f"{name}__i__valid"], feed.valid, note)
    layout = checked_layout(max(WORDS) // lanes, lanes, CENTROIDS.get(lanes, 0), lanes in SEQUENCES,
                            OWNERS.get(lanes, 0))
    for number in range(len(offered)):
        when = np.flatnonzero(want == number)
        if not len(when):
            continue
        rows = trace[f"{name}__o__payload"][when]
        assert (rows == rows[0]).all(), note
        checked = from_int(layout, int.from_bytes(rows[0].tobytes(), "little"))
        assert checked["kind"] == int(offered[number][0]) & 15, note
        last = number == len(offered) - 1
        wrong = last and fault is not None
        assert checked["wrong"] == wrong, f"instruction {number}, {note}"
        assert checked["number"] == (fault if wrong else number), f"instruction {number}, {note}"
        if number < len(jobs):
            _compare(checked, layer_list.job(
                jobs[number], lanes=lanes, memory_rows=max(WORDS) // lanes, owners=lanes in OWNERS), jobs[number],
                f"instruction {number}, {note}")
    return len(jobs), ends_wrong, fault is not None and not ends_wrong


def _compare(fields, expected, job, note):
    got = fields[type(job).__name__.lower()]
    for name, value in expected.items():
        if isinstance(value, dict):
            assert {inner: got[name][inner] for inner in value} == value, f"{name}, {note}"
        else:
            assert got[name] == value, f"{name}, {note}"


@pytest.mark.parametrize(("lanes", "source", "sink"), [
    *((lanes, "none", "none") for lanes in ROWS), (4, "geometric", "alternating"), (4, "freeze", "freeze"),
    (4, "alternating", "geometric")])
def test_lists(lanes, source, sink):
    """Random lists give the expected verdicts, jobs and cycle counts."""
    valid = wrong = over = 0
    for number in range(LISTS):
        seed = 10_000 * lanes + 1_000 * STALLS.index(source) + number
        generator = np.random.default_rng(seed)
        command = draw_command(generator)
        instructions = draw_list(generator, lanes, command, int(generator.integers(1, 6)))
        good, bad, covered = _run(lanes, command, instructions, source=source, sink=sink, seed=seed)
        valid, wrong, over = valid + good, wrong + bad, over + covered
    assert valid > LISTS
    assert wrong > LISTS // 8
    assert over > 0 or source != "none"


GRADIENTS, WEIGHTS, ACTIVATIONS, ONES = Place
COMMAND = Command(list_base=768, state_base=16, length=5)
#: A product of a 5 x 8 and an 8 x 6 matrix with a bias and a gate, and a loss; no field is at its limit.
PRODUCT = {
    "kind": Kind.GEMM, "m": 0, "k": 8, "n": 6, "initial": Initial.MATRIX, "gated": 1, "rounds": 3,
    "a": at(ACTIVATIONS, 0), "stride_a": 8, "b": at(WEIGHTS, 64), "stride_b": 8, "c": at(ACTIVATIONS, 128),
    "stride_c": 8, "start": at(WEIGHTS, 0), "stride_start": 0, "gate": at(GRADIENTS, 16), "stride_gate": 8}
LOSS = {
    "kind": Kind.VECTOR, "function": 0, "rows": 0, "columns": 6, "source": at(ACTIVATIONS, 128), "stride_source": 8,
    "labels": at(ACTIVATIONS, 201), "stride_labels": 1, "target": at(GRADIENTS, 32), "stride_target": 8,
    "loss": at(GRADIENTS, 255)}
#: Changed fields that make the product or loss instruction invalid.
WRONG_PRODUCTS = [
    {"kind": 3}, {"kind": 4}, {"kind": 9}, {"format": 1}, {"format": 8}, {"initial": 2},
    {"initial": 3}, {"reserved_0": 1}, {"reserved_0": 1 << 3}, {"reserved_3": 1 << 5}, {"reserved_11": 1},
    {"reserved_14": 1}, {"reserved_15": 1 << 7}, {"order": 3}, {"tile": 4}, {"row_tiles": 8}, {"column_tiles": 8},
    {"rounds": 5}, {"rounds": 15}, {"rounds": 1}, {"row_tiles": 3, "tile": 3}, {"m": 4096}, {"k": 4096}, {"n": 4096},
    {"a": at(ACTIVATIONS, 2)}, {"a": at(ACTIVATIONS, 1, relative=1)}, {"a": at(4, 0)}, {"a": at(7, 0)},
    {"stride_a": 10}, {"stride_a": 4}, {"stride_a": 0}, {"a": at(ACTIVATIONS, 988)},
    {"a": at(ACTIVATIONS, (1 << BASE_BITS) - 4)}, {"stride_a": 0xFFFC}, {"k": 9}, {"transpose_a": 1, "stride_a": 4},
    {"b": at(WEIGHTS, (1 << BASE_BITS) - 4, relative=1)}, {"b": at(ACTIVATIONS, 144)},
    {"b": at(WEIGHTS, 65)}, {"b": at(WEIGHTS, 132)}, {"stride_b": 4}, {"transpose_b": 1, "b": at(WEIGHTS, 148)},
    {"stride_b": 0}, {"c": at(WEIGHTS, 128)}, {"c": at(ONES, 128)}, {"c": at(ACTIVATIONS, 36)},
    {"c": at(ACTIVATIONS, 0)}, {"c": at(GRADIENTS, 16)}, {"c": at(GRADIENTS, 48)}, {"stride_c": 4},
    {"stride_c": 0}, {"c": at(ACTIVATIONS, 129)}, {"c": at(GRADIENTS, 220)}, {"start": at(ONES, 0)},
    {"start": at(WEIGHTS, 188)}, {"start": at(WEIGHTS, 2)}, {"start": at(ACTIVATIONS, 128)},
    {"start": at(ACTIVATIONS, 132), "stride_start": 8}, {"start": at(ACTIVATIONS, 128), "stride_start": 12},
    {"stride_start": 4}, {"gate": at(ONES, 0)}, {"gate": at(GRADIENTS, 18)}, {"stride_gate": 4}, {"stride_gate": 0},
    {"gate": at(ACTIVATIONS, 160)}, {"gate": at(GRADIENTS, 220)}]
WRONG_LOSSES = [
    {"function": 2}, {"function": 255}, {"reserved_0": 1}, {"reserved_2": 1 << 63}, {"reserved_8": 1},
    {"reserved_10": 1}, {"reserved_11": 1 << 159}, {"rows": 4096}, {"columns": 4096}, {"columns": 9},
    {"columns": 65, "rows": 1, "stride_source": 68, "stride_target": 68, "target": at(GRADIENTS, 0)},
    {"source": at(ACTIVATIONS, 130)}, {"source": at(ONES, 0)}, {"stride_source": 4}, {"stride_source": 0},
    {"source": at(ACTIVATIONS, 988)}, {"labels": at(ONES, 0)}, {"labels": at(ACTIVATIONS, 1020)},
    {"target": at(WEIGHTS, 32)}, {"target": at(ONES, 32)}, {"target": at(ACTIVATIONS, 160)},
    {"target": at(ACTIVATIONS, 168)}, {"target": at(GRADIENTS, 33)}, {"target": at(GRADIENTS, 220)},
    {"stride_target": 10}, {"stride_target": 0}, {"loss": at(WEIGHTS, 0)}, {"loss": at(ONES, 0)},
    {"loss": at(GRADIENTS, 256)}, {"loss": at(GRADIENTS, 32)}, {"loss": at(GRADIENTS, 69)},
    {"loss": at(ACTIVATIONS, 128)}, {"loss": at(ACTIVATIONS, 165)}, {"loss": at(ACTIVATIONS, 201)},
    {"loss": at(ACTIVATIONS, 205)}, {"target": at(ACTIVATIONS, 200)}]
#: Changes to the product or loss instruction that stay within the limits.
VALID_PRODUCTS = [
    {}, {"a": at(ACTIVATIONS, 984)}, {"a": at(ACTIVATIONS, 968, relative=1)}, {"m": 5}, {"b": at(WEIGHTS, 128)},
    {"k": 0, "stride_a": 8}, {"transpose_a": 1, "k": 5}, {"transpose_b": 1, "b": at(WEIGHTS, 144)},
    {"a": at(ONES, 1), "stride_a": 3}, {"b": at(ONES, 1 << 27), "stride_b": 1}, {"c": at(ACTIVATIONS, 40)},
    {"c": at(GRADIENTS, 56)}, {"c": at(GRADIENTS, 216)}, {"start": at(WEIGHTS, 184)},
    {"start": at(ACTIVATIONS, 128), "stride_start": 8}, {"start": at(ACTIVATIONS, 168)}, {"rounds": 4},
    {"start": at(ONES, 3), "initial": 0, "stride_start": 1}, {"gate": at(6, 1), "gated": 0, "stride_gate": 5},
    {"gate": at(GRADIENTS, 216)}, {"scale": 0xFFFF_FFFF}, {"order": 2}, {"gate": at(ACTIVATIONS, 168)},
    {"scaled": 1, "scale": 0x7FC0_0001}, {"masked": 1, "triangle": 1, "diagonal": 0x1FFF, "end_row": 0xFFF}]
VALID_LOSSES = [
    {"columns": 64, "rows": 1, "stride_source": 64, "stride_target": 64, "target": at(GRADIENTS, 0)},
    {}, {"rows": 5}, {"columns": 0}, {"columns": 8}, {"stride_labels": 0}, {"labels": at(ACTIVATIONS, 1019)},
    {"target": at(GRADIENTS, 216), "loss": at(GRADIENTS, 0)},
    {"target": at(ACTIVATIONS, 168), "labels": at(WEIGHTS, 3)},
    {"loss": at(GRADIENTS, 31)}, {"loss": at(GRADIENTS, 70)}, {"loss": at(ACTIVATIONS, 206)},
    {"target": at(ACTIVATIONS, 208)},
    {"function": VectorProgram.SOFTMAX, "labels": at(7, 9), "loss": at(WEIGHTS, 0), "stride_labels": 5}]

#: A centroid product of 5 x 9 inputs with 6 outputs in two groups, and gradients of its centroids, on the same
#: operands.
CENTROID = {
    "kind": Kind.CENTROID, "columns": 9, "outputs": 6, "initial": 1, "gated": 1, "x": at(ACTIVATIONS, 0),
    "stride_x": 12,
    "indices": at(WEIGHTS, 64), "stride_indices": 8, "target": at(ACTIVATIONS, 128), "stride_target": 8,
    "start": at(WEIGHTS, 0), "stride_start": 0, "table": at(WEIGHTS, 16), "gate": at(GRADIENTS, 16), "stride_gate": 8}
DERIVATIVE = CENTROID | {
    "gradient": 1, "initial": 0, "gated": 0, "target": at(GRADIENTS, 0), "start": at(ACTIVATIONS, 64),
    "stride_start": 8}
WRONG_CENTROIDS = [
    {"reserved_0": 1 << 23}, {"reserved_2": 1}, {"reserved_12": 1}, {"reserved_13": 1 << 95}, {"rows": 4096},
    {"columns": 4096}, {"outputs": 4096}, {"columns": 13}, {"columns": 17}, {"outputs": 9}, {"stride_x": 8},
    {"stride_x": 14}, {"x": at(ACTIVATIONS, 2)}, {"x": at(ACTIVATIONS, 988)}, {"x": at(ONES, 0)},
    {"indices": at(WEIGHTS, 66)}, {"indices": at(WEIGHTS, 180)}, {"stride_indices": 4}, {"stride_indices": 0},
    {"indices": at(ONES, 0)}, {"indices": at(ACTIVATIONS, 160)}, {"target": at(WEIGHTS, 96)}, {"target": at(ONES, 0)},
    {"target": at(ACTIVATIONS, 52)}, {"target": at(GRADIENTS, 48)}, {"target": at(GRADIENTS, 224)},
    {"stride_target": 0}, {"stride_target": 4}, {"start": at(WEIGHTS, 188)}, {"start": at(WEIGHTS, 2)},
    {"stride_start": 4}, {"start": at(ACTIVATIONS, 128), "stride_start": 8}, {"start": at(ONES, 0)},
    {"table": at(WEIGHTS, 180)}, {"table": at(WEIGHTS, 18)}, {"table": at(ACTIVATIONS, 164)}, {"table": at(ONES, 0)},
    {"gate": at(GRADIENTS, 220)}, {"stride_gate": 4}, {"stride_gate": 0}, {"gate": at(ACTIVATIONS, 132)}]
VALID_CENTROIDS = [
    {}, {"relu": 1}, {"rows": 5}, {"columns": 12}, {"outputs": 8}, {"columns": 16, "stride_x": 16}, {"columns": 8},
    {"x": at(ACTIVATIONS, 964)}, {"indices": at(WEIGHTS, 176)}, {"target": at(ACTIVATIONS, 60)},
    {"target": at(GRADIENTS, 56)}, {"start": at(WEIGHTS, 184)}, {"start": at(ACTIVATIONS, 168), "stride_start": 8},
    {"start": at(7, 1), "initial": 0, "stride_start": 3}, {"table": at(WEIGHTS, 176)}, {"gate": at(GRADIENTS, 216)},
    {"gate": at(6, 1), "gated": 0, "stride_gate": 5}, {"indices": at(ACTIVATIONS, 112)}]
WRONG_DERIVATIVES = [
    {"initial": 1}, {"relu": 1}, {"gated": 1}, {"stride_start": 0}, {"start": at(ACTIVATIONS, 988)},
    {"target": at(GRADIENTS, 244)}, {"target": at(GRADIENTS, 2)}, {"target": at(WEIGHTS, 0)},
    {"target": at(ACTIVATIONS, 52)}, {"target": at(ACTIVATIONS, 96)}]
VALID_DERIVATIVES = [
    {}, {"stride_target": 5}, {"table": at(ONES, 1)}, {"gate": at(7, 1)}, {"target": at(GRADIENTS, 240)},
    {"target": at(ACTIVATIONS, 104)}]

#: A 5 x 6 layer norm with a start, and a function that uses the row indices of a seven-row table.
NORM = {
    "kind": Kind.ROWS, "function": RowFunction.NORM, "started": 1, "columns": 6, "factor": 0x3E2A_AAAB,
    "x": at(ACTIVATIONS, 0), "stride_x": 8, "start": at(ACTIVATIONS, 40), "stride_start": 8,
    "target": at(ACTIVATIONS, 128), "stride_target": 8, "second": at(GRADIENTS, 0), "stride_second": 8,
    "third": at(GRADIENTS, 40), "stride_third": 8, "deviation": at(GRADIENTS, 80), "scale": at(WEIGHTS, 0),
    "shift": at(WEIGHTS, 8)}
BACK = NORM | {"function": RowFunction.NORM_BACK, "y": at(ACTIVATIONS, 200), "stride_y": 8,
               "deviation": at(WEIGHTS, 16)}
GATHER = {
    "kind": Kind.ROWS, "function": RowFunction.GATHER, "started": 1, "columns": 6, "count": 7, "x": at(WEIGHTS, 0),
    "stride_x": 8, "y": at(ACTIVATIONS, 201), "stride_y": 1, "start": at(ACTIVATIONS, 40), "stride_start": 8,
    "target": at(ACTIVATIONS, 128), "stride_target": 8}
SCATTER = GATHER | {
    "function": RowFunction.SCATTER, "started": 0, "x": at(ACTIVATIONS, 0), "target": at(GRADIENTS, 0)}
WRONG_NORMS = [
    {"function": 8}, {"function": 1 << 7}, {"reserved_0": 1}, {"reserved_0": 4}, {"rows": 4096}, {"columns": 4096},
    {"columns": 9}, {"function": RowFunction.ADD, "started": 0}, {"function": RowFunction.SCALE},
    {"function": RowFunction.SOFTMAX_BACK, "y": at(ACTIVATIONS, 200), "stride_y": 8}, {"function": RowFunction.CLEAR},
    {"x": at(ACTIVATIONS, 2)}, {"x": at(ONES, 0)}, {"stride_x": 4}, {"stride_x": 0}, {"stride_x": 10},
    {"x": at(ACTIVATIONS, 988)}, {"start": at(4, 40)}, {"stride_start": 4}, {"target": at(WEIGHTS, 128)},
    {"target": at(ACTIVATIONS, 36)}, {"target": at(ACTIVATIONS, 0), "stride_target": 12}, {"stride_target": 0},
    {"target": at(ACTIVATIONS, 44)}, {"target": at(GRADIENTS, 0)}, {"target": at(GRADIENTS, 20)},
    {"target": at(GRADIENTS, 40)}, {"second": at(GRADIENTS, 40)}, {"scale": at(ACTIVATIONS, 132)},
    {"target": at(GRADIENTS, 80)}, {"second": at(WEIGHTS, 64)}, {"second": at(ACTIVATIONS, 0)},
    {"second": at(ACTIVATIONS, 40)}, {"second": at(GRADIENTS, 4)}, {"stride_second": 4}, {"third": at(WEIGHTS, 64)},
    {"third": at(ACTIVATIONS, 4)}, {"third": at(ACTIVATIONS, 40), "stride_third": 12}, {"stride_third": 0},
    {"deviation": at(WEIGHTS, 16)}, {"deviation": at(GRADIENTS, 82)}, {"deviation": at(GRADIENTS, 252)},
    {"deviation": at(ACTIVATIONS, 4)}, {"scale": at(WEIGHTS, 2)}, {"scale": at(WEIGHTS, 188)},
    {"scale": at(GRADIENTS, 84)}, {"scale": at(GRADIENTS, 72)}, {"shift": at(ONES, 0)},
    {"shift": at(ACTIVATIONS, 160)}, {"columns": 65, "rows": 1, "x": at(ACTIVATIONS, 200)}]
VALID_NORMS = [
    {}, {"rows": 5}, {"rows": 1}, {"columns": 8}, {"count": 0xFFFF}, {"target": at(ACTIVATIONS, 0)},
    {"target": at(ACTIVATIONS, 40)}, {"third": at(ACTIVATIONS, 0)}, {"third": at(ACTIVATIONS, 40)},
    {"third": at(ACTIVATIONS, 40), "target": at(ACTIVATIONS, 0)}, {"stride_start": 0},
    {"start": at(ACTIVATIONS, 984)}, {"deviation": at(GRADIENTS, 248)}, {"scale": at(WEIGHTS, 184)},
    {"y": at(7, 1), "stride_y": 3},
    {"started": 0, "start": at(7, 1), "third": at(7, 1), "stride_start": 1, "stride_third": 1},
    {"function": RowFunction.ADD, "second": at(7, 1), "third": at(7, 1), "deviation": at(7, 1), "scale": at(7, 1),
     "shift": at(7, 1), "stride_second": 1}, {"factor": 0xFFFF_FFFF, "epsilon": 0x7F80_0001}]
WRONG_BACKS = [
    {"y": at(ONES, 0)}, {"y": at(ACTIVATIONS, 201)}, {"stride_y": 4}, {"y": at(ACTIVATIONS, 160)},
    {"y": at(ACTIVATIONS, 128)}, {"second": at(ACTIVATIONS, 200)}, {"deviation": at(GRADIENTS, 36)},
    {"deviation": at(WEIGHTS, 188)}, {"second": at(WEIGHTS, 64)}, {"deviation": at(ACTIVATIONS, 128)}]
VALID_BACKS = [{}, {"third": at(7, 1), "shift": at(7, 1)}, {"started": 0}, {"target": at(ACTIVATIONS, 40)}]
WRONG_GATHERS = [
    {"count": 4096}, {"x": at(WEIGHTS, 140)}, {"y": at(ONES, 1)}, {"y": at(ACTIVATIONS, 1020)},
    {"y": at(ACTIVATIONS, 130)}, {"target": at(ACTIVATIONS, 200)}, {"x": at(ACTIVATIONS, 128), "count": 5},
    {"x": at(ACTIVATIONS, 40), "count": 5, "target": at(ACTIVATIONS, 40)}]
VALID_GATHERS = [{}, {"x": at(WEIGHTS, 136)}, {"y": at(ACTIVATIONS, 1019)}, {"stride_y": 0}, {"started": 0},
                 {"count": 0}, {"target": at(ACTIVATIONS, 40)}]
WRONG_SCATTERS = [{"started": 1}, {"target": at(GRADIENTS, 204)}, {"count": 4096},
                  {"target": at(ACTIVATIONS, 0), "count": 5}, {"y": at(GRADIENTS, 50)}]
VALID_SCATTERS = [{}, {"target": at(GRADIENTS, 200)}, {"y": at(GRADIENTS, 56)}, {"start": at(7, 1)}]
WRONG_SOFTMAXES = [{"target": at(ACTIVATIONS, 128)}, {"target": at(ACTIVATIONS, 132)}, {"columns": 65, "rows": 1},
                   {"target": at(WEIGHTS, 0)}, {"reserved_2": 1}, {"source": at(ONES, 0)}]
VALID_SOFTMAXES = [{}, {"labels": at(7, 1)}, {"loss": at(WEIGHTS, 5)}, {"loss": at(GRADIENTS, 32)},
                   {"labels": at(GRADIENTS, 32)}]


def _single(layout, fields, seed):
    """Check an instruction followed by an END; return whether it is valid."""
    valid, wrong, _ = _run(4, COMMAND, [pack(layout, fields), END], source="none", sink="none", seed=seed)
    assert valid + wrong == 1
    return not wrong


def test_each_refusal():
    """Each kind of error is detected on its own, and instructions exactly at the limits are valid."""
    for layout, fields, wrong, valid in ((gemm_layout(), PRODUCT, WRONG_PRODUCTS, VALID_PRODUCTS),
                                         (vector_layout(), LOSS, WRONG_LOSSES, VALID_LOSSES),
                                         (centroid_layout(), CENTROID, WRONG_CENTROIDS, VALID_CENTROIDS),
                                         (centroid_layout(), DERIVATIVE, WRONG_DERIVATIVES, VALID_DERIVATIVES),
                                         (row_layout(), NORM, WRONG_NORMS, VALID_NORMS),
                                         (row_layout(), BACK, WRONG_BACKS, VALID_BACKS),
                                         (row_layout(), GATHER, WRONG_GATHERS, VALID_GATHERS),
                                         (row_layout(), SCATTER, WRONG_SCATTERS, VALID_SCATTERS),
                                         (vector_layout(), LOSS | {"function": VectorProgram.SOFTMAX},
                                          WRONG_SOFTMAXES, VALID_SOFTMAXES)):
        for changes in wrong:
            assert not _single(layout, fields | changes, 1), changes
        for changes in valid:
            assert _single(layout, fields | changes, 1), changes


def test_neither_scaled_nor_masked():
    """A checker without scale and mask rejects only the instructions that require them."""
    product = PRODUCT | {"scale": 1, "alternative": 1, "band": 1, "width": 0xFFF, "length_rows": 0xFFF}
    for changes, good in (({}, 1), ({"scaled": 1}, 0), ({"masked": 1}, 0)):
        instructions = [pack(gemm_layout(), product | changes), END]
        assert _run(2, COMMAND, instructions, source="none", sink="none", seed=1)[:2] == (good, not good)


def test_no_centroids():
    """A checker without centroids rejects a centroid product like any unknown kind."""
    instructions = [pack(centroid_layout(), CENTROID), END]
    assert _run(2, COMMAND, instructions, source="none", sink="none", seed=1)[:2] == (0, 1)


def test_no_sequences():
    """Without sequence functions, ROWS is an unknown kind and SOFTMAX an unknown function."""
    for layout, fields in ((row_layout(), NORM), (vector_layout(), LOSS | {"function": VectorProgram.SOFTMAX})):
        instructions = [pack(layout, fields), END]
        assert _run(2, COMMAND, instructions, source="none", sink="none", seed=1)[:2] == (0, 1)


def test_targets_over_the_list():
    """If several instructions (including END) write into the list, the lowest target address is reported."""
    first = pack(gemm_layout(), PRODUCT)
    for base, fault in ((736, 1), (768 + 48 - 4, 1), (768 + 48, None), (768 - 40, None)):
        second = pack(gemm_layout(), {**PRODUCT, "c": at(ACTIVATIONS, base)})
        assert golden_list(4, COMMAND, [first, second, END])[1] == fault, base
        _run(4, COMMAND, [first, second, END], source="none", sink="none", seed=2)
        third = pack(vector_layout(), {**LOSS, "loss": at(ACTIVATIONS, 790)})
        assert golden_list(4, COMMAND, [third, END])[1] == 0
        _run(4, COMMAND, [third, second, END], source="none", sink="none", seed=3)
    for name in ("target", "second", "third", "deviation"):
        rows = pack(row_layout(), {**NORM, name: at(ACTIVATIONS, 808)})
        assert golden_list(4, COMMAND, [first, rows, END])[1] == 1, name
        _run(4, COMMAND, [first, rows, END], source="none", sink="none", seed=5)
    wrong_end = END.copy()
    wrong_end[15] = 1 << 31
    assert _run(4, COMMAND, [first, wrong_end], source="none", sink="none", seed=4)[:2] == (1, True)


def test_without_a_check():
    """With ``check`` off, operands are not checked, and a job is offered after a cycle per operand."""
    generator = np.random.default_rng(5)
    command = draw_command(generator)
    name, unit = "checker_4", units()
    instructions = [words for _ in range(30) for words in draw_list(generator, 4, command, 1)]
    kinds = [int(words[0]) & 15 for words in instructions]
    assert {Kind.END, Kind.GEMM, Kind.VECTOR} <= set(kinds)
    unit.reset()
    trace = unit.lockstep(
        sources={f"{name}__i": Feed(_beats(instructions))}, sinks={f"{name}__o": True}, cycles=600, inputs={
            f"{name}__list_base": 0, f"{name}__state_base": command.state_base, f"{name}__length": command.length})
    want, at = [], 0
    for words in instructions:
        at += layer_list.job_cycles(words)
        want.append(at)
        at += 1
    assert np.flatnonzero(trace[f"{name}__o__valid"]).tolist() == want
    layout = checked_layout(max(WORDS) // 4, 4, CENTROIDS[4], sequences=True, owner_bits=OWNERS[4])
    for row in trace[f"{name}__o__payload"][want]:
        assert not from_int(layout, int.from_bytes(row.tobytes(), "little"))["wrong"]


def test_reset():
    """A reset in the middle of a check does not affect the next list."""
    generator = np.random.default_rng(6)
    name, unit = "checker_4", units()
    for cut in (1, 2, 5, 9, 20, 33):
        command = draw_command(generator)
        unit.lockstep(sources={f"{name}__i": Feed(_beats(draw_list(generator, 4, command, 2)))},
                      sinks={f"{name}__o": True}, cycles=cut, inputs={f"{name}__check": 1, f"{name}__length": 3})
        _run(4, command, draw_list(generator, 4, command, 3), source="none", sink="none", seed=cut)
