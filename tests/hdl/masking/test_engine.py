# amaranth: UnusedElaboratable=no
"""MASK and SPARSIFY as commands of a node, between memories: hdl/masking/engine.py."""

import dataclasses
import functools

import numpy as np
import pytest

from hdl.config import Memories, NodeConfig
from hdl.control.protocol import EventStatus, Operation, command_layout
from hdl.masking.circuit import MaskCircuit
from hdl.masking.engine import MaskEngine, counts_layout, mask_cycles, sparsify_cycles
from hdl.masking.magnitude import MagnitudeMask
from hdl.masking.mask import INDEX_BITS
from hdl.row_transfer import RowReader
from sim.golden import masking as model
from sim.verilated.vectors import Feed, Unit, pack
from tests.hdl import engines
from tests.hdl.engines import VERSION, Bench, command, content, fill
from tests.hdl.masking import masks

LANES = (1, 2, 4, 8)
MEMORIES = Memories(gradient=2048, weight=1024)
ALTERNATIVE = 0xC61C4000
THRESHOLD = int(np.float32(0.5).view(np.uint32))


@functools.cache
def unit(lanes, **options):
    config = NodeConfig(lanes=lanes, memories=MEMORIES, **options)
    return Unit(Bench(MaskEngine(config=config), config, settings=("alternative", "threshold")),
                name=f"MaskBench{lanes}")


def run(bench, *commands, threshold=THRESHOLD, **options):
    return engines.run(bench, *commands, counts=counts_layout(), alternative=ALTERNATIVE, threshold=threshold,
                       **options)


# --- jobs in memory


@dataclasses.dataclass
class Case:
    """Initial memories, a MASK command, and the command's expected results."""

    lanes: int
    jobs: list
    seed: int
    gradient_base: int = 96
    jobs_base: int = 64
    wrong: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        generator = np.random.default_rng(self.seed)
        self.gradients = generator.integers(0, 1 << 32, MEMORIES.gradient, dtype=np.uint32)
        self.weights = generator.integers(0, 1 << 32, MEMORIES.weight, dtype=np.uint32)
        words, kept = masks.external_all(generator, self.jobs)
        listed = [masks.job_words(job, self.lanes, **self.wrong.get(n, {})) for n, job in enumerate(self.jobs)]
        listed = np.concatenate([*listed, np.zeros(0, np.uint32)])
        self.state_base = -(-(self.jobs_base + len(listed)) // 32) * 32
        self.weights[self.jobs_base:self.jobs_base + len(listed)] = listed
        self.weights[self.state_base:self.state_base + len(words)] = words
        self.kept, self.fetched = kept, len(words)
        self.length = sum(masks.memory_elements(job, self.lanes) for job in self.jobs)

    def command(self, **options):
        return command(**{
            "operation": Operation.MASK, "gradient_base": self.gradient_base, "weight_base": self.jobs_base,
            "state_base": self.state_base, "length": self.length, "tag": 9, "rank": 200, "size": 0, "port": 3,
        } | options)

    def expected(self, jobs=None):
        """Gradient memory after the first ``jobs`` jobs (all by default), and the number of masked elements."""
        result, start, masked = self.gradients.copy(), self.gradient_base, 0
        for job, kept in list(zip(self.jobs, self.kept, strict=True))[:jobs]:
            keep, real = masks.padded(kept, job, self.lanes)
            region = result[start:start + len(keep)]
            region[real & ~keep] = ALTERNATIVE
            masked += int((real & ~keep).sum())
            start += len(keep)
        return result, masked

    def cycles(self):
        """Number of cycles of the MASK command, according to the formula in MaskEngine."""
        return mask_cycles([(job.rows, job.columns, job.count) for job in self.jobs], lanes=self.lanes)

    def fill(self, bench):
        bench.reset()
        fill(bench, 0, self.gradients)
        fill(bench, 1, self.weights)

    def check(self, bench, jobs=None):
        """Check that a command has changed only elements that belong to its jobs."""
        np.testing.assert_array_equal(content(bench, 0, len(self.gradients)), self.expected(jobs)[0])
        np.testing.assert_array_equal(content(bench, 1, len(self.weights)), self.weights)


def some_jobs(seed, lanes, *, count=6, kinds=0.3):
    """Draw mask jobs that fit into the memories."""
    generator = np.random.default_rng(seed)
    while True:
        jobs = masks.jobs(generator, count, kinds=kinds)
        if sum(masks.memory_elements(job, lanes) for job in jobs) <= MEMORIES.gradient - 96:
            return jobs


def event(status, detail, cycles, tag=9):
    return {"tag": tag, "status": status, "flags": 0, "queue": 0, "detail": detail, "cycles": cycles,
            "weight_version": VERSION}


# --- construction


def test_constructor_errors():
    with pytest.raises(ValueError, match=r"^Node must have masking or error feedback, not NodeConfig\(.*\)$"):
        MaskEngine(config=NodeConfig(masking=False, sparsify=False))


# --- MASK


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("seed", range(6))
def test_mask(lanes, seed):
    """Random jobs and masks give the expected memories, event, counters and cycle count."""
    case = Case(lanes, some_jobs(seed, lanes), seed)
    bench = unit(lanes)
    case.fill(bench)
    (result,), counts = run(bench, case.command())
    case.check(bench)
    masked = case.expected()[1]
    assert result == event(EventStatus.OK, masked, case.cycles())
    # The job reader and the word reader may compete for the same memory.
    assert counts.pop("stall_memory") == 0 or case.fetched
    assert counts == {"mask_words_fetched": case.fetched, "elements_masked": masked, "command_cycles": case.cycles()}


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize(("lanes", "shapes", "cycles"), [
    (1, ((8, 8, 3), (5, 17, 1)), 8 + 4 + 4 + 2 + 3 * 64 + 85),
    (2, ((8, 8, 3), (5, 17, 1)), 4 + 4 + 4 + 2 + 3 * 32 + 45),
    (4, ((8, 8, 3), (5, 17, 1)), 2 + 4 + 4 + 2 + 3 * 16 + 25),
    (8, ((8, 8, 3), (5, 17, 1)), 1 + 4 + 4 + 2 + 3 * 8 + 15),
    (4, ((5, 8, 1),) * 20, 2 + 3 + 4 + 2 + 19 * 12 + 10),  # 10 memory rows per job, but reading a job takes 12 cycles
    (4, ((3, 16, 1),) * 20, 2 + 2 + 5 + 2 + 20 * 12),  # with 12 memory rows per job, there is no gap
    (4, ((1, 1, 1),) * 5, 2 + 1 + 1 + 2 + 4 * 7 + 1),
    (4, ((32, 16, 2), (32, 16, 2)), 2 + 6 + 5 + 2 + 512),
])
def test_cycles_of_given_jobs(lanes, shapes, cycles, external):
    """One beat passes per cycle once the first job has been read, both with fetched and with generated masks."""
    jobs = [model.Job(rows=rows, columns=columns, count=count, mask=model.Mask(triangle=True, external=external))
            for rows, columns, count in shapes]
    case = Case(lanes, jobs, 5, gradient_base=0, jobs_base=0)
    bench = unit(lanes)
    case.fill(bench)
    (result,), _ = run(bench, case.command())
    latency = 1 + RowReader.latency + MaskCircuit.latency + 2
    assert (latency, result["cycles"]) == (15, latency + cycles)
    assert case.cycles() == result["cycles"]
    case.check(bench)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("reading", [0, 1])
@pytest.mark.parametrize("pattern", ["geometric", "freeze", "alternating"])
def test_stalls(lanes, reading, pattern):
    """Commands work while the host reads one of the memories, and with stalls of commands and events."""
    case = Case(lanes, some_jobs(20 + lanes, lanes), 7)
    bench = unit(lanes)
    case.fill(bench)
    results, counts = run(bench, case.command(tag=1), case.command(tag=2, length=0), pattern=pattern, seed=lanes,
                          cycles=9_000, reading=reading)
    case.check(bench)
    masked = case.expected()[1]
    assert [(each["tag"], each["status"], each["detail"]) for each in results] == [(1, 0, masked), (2, 0, 0)]
    assert results[0]["cycles"] >= case.cycles()
    assert results[1]["cycles"] == 0
    assert counts["stall_memory"] > 0
    assert counts["command_cycles"] == results[0]["cycles"]


def refused(case, number, bench=None, **options):
    """Check that a MASK with an invalid job runs only the preceding jobs, and the next command works."""
    bench = bench or unit(case.lanes)
    case.fill(bench)
    done = sum(masks.memory_elements(job, case.lanes) for job in case.jobs[:number])
    following = case.command(length=done, tag=1)
    results, counts = run(bench, case.command(**options), following, cycles=6_000)
    case.check(bench, number)
    assert (results[0]["status"], results[0]["detail"]) == (EventStatus.BAD_MASK, number)
    # The second command masks the same elements again.
    masked = case.expected(number)[1]
    assert (results[1]["status"], results[1]["detail"], results[1]["tag"]) == (EventStatus.OK, masked, 1)
    assert counts["elements_masked"] == 2 * masked


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("wrong", [
    *({name: 0} for name in ("rows", "columns", "count", "elements")),
    *({name: 1 << bit} for name in ("rows", "columns", "length_rows", "length_columns", "first_row", "end_row",
                                    "first_column", "end_column", "width") for bit in (INDEX_BITS, 15)),
    *({"diagonal": value & 0xFFFFFFFF} for value in (4096, -4097, 1 << 30, -1 << 31)),
], ids=str)
def test_a_wrong_field(wrong, number):
    refused(Case(4, some_jobs(2, 4, count=4), 2, wrong={number: wrong}), number)


@pytest.mark.parametrize("value", [4095, -4096, -1])
def test_widest_diagonals(value):
    jobs = [model.Job(rows=5, columns=7, count=3, mask=model.Mask(triangle=True, diagonal=value))]
    case = Case(4, jobs, 2)
    bench = unit(4)
    case.fill(bench)
    (result,), _ = run(bench, case.command())
    case.check(bench)
    assert result["status"] == EventStatus.OK


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("change", [-1, 1, "lane", "top"])
def test_elements_that_the_shape_does_not_take(lanes, change):
    case = Case(lanes, some_jobs(3, lanes, count=4), 3)
    elements = masks.memory_elements(case.jobs[2], lanes)
    wrong = {"lane": elements + 1, "top": elements + (1 << 31)}.get(change)
    case = Case(lanes, case.jobs, 3, wrong={2: {"elements": elements + change * lanes if wrong is None else wrong}})
    refused(case, 2)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(("rows", "count", "beats"), [
    (4095, 65535, 4095), (4, 16385, 1), (1, 4097, 16), (1, 32769, 2), (1, 32769, 4), (2, 32768, 1), (1, 65535, 256)])
def test_products_that_overflow(lanes, rows, count, beats):
    """A job is invalid if `elements` equals the product of its sizes only modulo 2 ** 16."""
    columns = min(beats * lanes, 4095)
    elements = rows * count * -(-columns // lanes) % (1 << 16) * lanes
    case = Case(lanes, some_jobs(4, lanes, count=3), 4, wrong={
        1: {"rows": rows, "count": count, "columns": columns, "elements": elements}})
    refused(case, 1)


@pytest.mark.parametrize("lanes", LANES)
def test_jobs_beyond_the_length(lanes):
    """If the command's length is too short by one memory row, or by one element, the last job is invalid."""
    case = Case(lanes, some_jobs(5, lanes, count=4), 5)
    refused(case, 3, length=case.length - lanes)
    if lanes > 1:
        refused(case, 3, length=case.length - 1)


@pytest.mark.parametrize("lanes", LANES)
def test_the_list_runs_beyond_the_memory(lanes):
    """A list is invalid if one of its jobs, the fifth or even the first, lies past the end of the memory."""
    jobs = some_jobs(6, lanes, count=4, kinds=0)
    case = Case(lanes, jobs, 6, jobs_base=MEMORIES.weight - 32)
    refused(case, 4, length=case.length + lanes, state_base=0)
    refused(case, 0, weight_base=MEMORIES.weight, state_base=0)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("room", [0, 32])
def test_words_run_beyond_the_memory(lanes, room):
    """External words may reach the end of the memory, but not extend past it; generated masks need no words."""
    shape = {"rows": 32, "columns": 8}
    made = model.Job(**shape, mask=model.Mask(triangle=True))
    fetched = model.Job(**shape, mask=model.Mask(external=True, band=True, width=9))
    jobs = [made, *[fetched] * (room // 8), made, fetched]
    case = Case(lanes, jobs, 8)
    words = case.weights[case.state_base:case.state_base + room].copy()
    base = MEMORIES.weight - room
    case.weights[base:] = words
    refused(case, len(jobs) - 1, state_base=base)


def test_reset_in_the_middle():
    case = Case(4, [model.Job(rows=16, columns=16, count=4, mask=model.Mask(triangle=True))], 9)
    bench = unit(4)
    case.fill(bench)
    (result,), _ = run(bench, case.command())
    for cycles in (3, 12, 25, 100):
        bench.reset()
        rows = pack(command_layout(), {name: np.array([value]) for name, value in case.command().items()})
        bench.lockstep(sources={"command": Feed(rows)}, sinks={"event": True}, cycles=cycles)
        case.fill(bench)
        assert run(bench, case.command())[0] == [result]
        case.check(bench)


# --- SPARSIFY


def sparse_case(lanes, length, threshold, *, seed=0, gradient_base=64, weight_base=32):
    """Memories before and after a SPARSIFY, the command, and the number of dropped elements."""
    generator = np.random.default_rng(seed)
    memories = [generator.standard_normal(words).astype(np.float32).view(np.uint32)
                for words in (MEMORIES.gradient, MEMORIES.weight)]
    special = np.array([0, 0x80000000, 1, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFBFFFFF, 0x3F000000,
                        0x3EFFFFFF, 0xBF000000], np.uint32)
    for memory in memories:
        where = generator.random(len(memory)) < 0.3
        memory[where] = generator.choice(special, where.sum())
    after = [memory.copy() for memory in memories]
    g, e = slice(gradient_base, gradient_base + length), slice(weight_base, weight_base + length)
    after[0][g], after[1][e] = model.sparsify(memories[0][g], memories[1][e], threshold)
    sums = model.floating.add(memories[0][g], memories[1][e])
    dropped = int((sums & 0x7FFFFFFF < threshold & 0x7FFFFFFF).sum())
    return memories, after, dropped, command(
        operation=Operation.SPARSIFY, gradient_base=gradient_base, weight_base=weight_base, length=length, tag=9,
        state_base=0xFFFFFFFF, rank=200, port=3)


def sparsify(bench, memories, after, request, **options):
    """Run a SPARSIFY, compare the memories with ``after``, and return its event and counts."""
    bench.reset()
    for space, memory in enumerate(memories):
        fill(bench, space, memory)
    result = run(bench, request, **options)
    for space, memory in enumerate(after):
        np.testing.assert_array_equal(content(bench, space, len(memory)), memory)
    return result


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(("length", "threshold"), [
    (1, THRESHOLD), (32, 0), (33, 0x7F800000), (700, THRESHOLD), (701, 0x7FC00000), (702, 0xBF000000),
    (703, 0x7FFFFFFF), (992, 0x3F800000)])
def test_sparsify(lanes, length, threshold):
    """SPARSIFY gives the expected values, counters and cycles, and leaves other elements unchanged."""
    memories, after, dropped, request = sparse_case(lanes, length, threshold, seed=length)
    (result,), counts = sparsify(unit(lanes), memories, after, request, threshold=threshold)
    cycles = sparsify_cycles(length, lanes=lanes)
    assert cycles == -(-length // lanes) + 1 + RowReader.latency + 1 + MagnitudeMask.latency + 2
    assert result == event(EventStatus.OK, dropped, cycles)
    assert counts == {"mask_words_fetched": 0, "elements_masked": dropped, "command_cycles": cycles,
                      "stall_memory": 0}


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("reading", [0, 1])
def test_sparsify_while_the_host_reads(lanes, reading):
    memories, after, dropped, request = sparse_case(lanes, 900, THRESHOLD, seed=lanes)
    (result,), counts = sparsify(unit(lanes), memories, after, request, reading=reading, cycles=9_000,
                                 pattern="geometric")
    assert (result["status"], result["detail"]) == (EventStatus.OK, dropped)
    assert counts["stall_memory"] > 0


def test_one_after_the_other():
    """If a MASK, a SPARSIFY and a MASK with an invalid list run one after another, they do not affect each other."""
    case = Case(4, some_jobs(11, 4, count=3), 11)
    bench = unit(4)
    case.fill(bench)
    request = command(operation=Operation.SPARSIFY, gradient_base=0, weight_base=case.jobs_base, length=0, tag=5)
    bad = case.command(weight_base=MEMORIES.weight)
    results, _ = run(bench, case.command(), request, bad, case.command(), bad, case.command(), cycles=9_000)
    good = event(EventStatus.OK, case.expected()[1], case.cycles())
    wrong = event(EventStatus.BAD_MASK, 0, results[2]["cycles"])
    assert results == [good, event(EventStatus.OK, 0, 0, tag=5), wrong, good, wrong, good]
    case.check(bench)


# --- nodes with only one of the operations


def test_mask_alone():
    case = Case(4, some_jobs(1, 4), 1)
    bench = unit(4, sparsify=False)
    case.fill(bench)
    (result,), _ = run(bench, case.command())
    case.check(bench)
    assert result == event(EventStatus.OK, case.expected()[1], case.cycles())


def test_sparsify_alone():
    memories, after, dropped, request = sparse_case(4, 500, THRESHOLD)
    (result,), _ = sparsify(unit(4, masking=False), memories, after, request)
    assert result == event(EventStatus.OK, dropped, sparsify_cycles(500, lanes=4))
