import dataclasses
import functools
import itertools

import numpy as np
import pytest

from hdl.config import Memories, NodeConfig
from hdl.control.protocol import EventStatus
from hdl.node import Node
from host.driver.device import Device
from host.driver.diagnosis import RingError
from host.driver.masking import Mask, MaskJob, plan, unpack
from host.driver.memory import errors_base
from host.driver.ring import Ring
from host.transports.pysim import PysimRing
from host.transports.verilated import OpenRing
from sim.golden import masking as golden
from tests.host.golden import GoldenRing
from tests.host.rings import library
from tests.refusals import refuses
from tests.words import bits_of

KINDS = ("triangle", "triangle_inverse", "padding", "rectangle", "rectangle_inverse", "band", "external")
ALTERNATIVE = -10000.0


def random_job(generator, *, count=3, size=20, external=None):
    """Return a job with a random combination of mask kinds and random mask bits."""
    count, rows, columns = (int(generator.integers(1, most + 1)) for most in (count, size, size))
    kinds = {kind: bool(generator.random() < 0.3) for kind in KINDS}
    if external is not None:
        kinds["external"] = external
    names = ("length_rows", "length_columns", "first_row", "end_row", "first_column", "end_column", "width")
    mask = Mask(**kinds, diagonal=int(generator.integers(-size, size)),
                **{name: int(generator.integers(0, size + 3)) for name in names})
    values = generator.integers(0, 1 << 32, (count, rows, columns), dtype=np.uint32).view(np.float32)
    return MaskJob(matrices=values, mask=mask,
                   external=generator.random((count, rows, columns)) < 0.5 if kinds["external"] else None)


def reference(job, alternative=ALTERNATIVE):
    """Return the masked bits and the number of replaced elements according to the golden model."""
    shape = golden.Job(rows=job.rows, columns=job.columns, count=job.count, mask=golden.Mask(**vars(job.mask)))
    kept = golden.kept(shape, None if job.external is None else golden.words(job.external))
    return golden.apply(job.matrices.view(np.uint32), kept, bits_of([alternative])[0]), int((~kept).sum())


def assert_masked(jobs, outcome, alternative=ALTERNATIVE):
    for node_jobs, results, replaced in zip(jobs, outcome.results, outcome.replaced, strict=True):
        expected = [reference(job, alternative) for job in node_jobs]
        assert len(results) == len(node_jobs)
        for result, (values, _) in zip(results, expected, strict=True):
            assert result.dtype == np.float32
            assert np.array_equal(result.view(np.uint32), values)
        assert replaced == sum(count for _, count in expected)


class TestErrors:
    @pytest.mark.parametrize(("options", "message"), [
        ({"width": 4096}, "Mask's width must be a number of 12 bits, not 4096"),
        ({"length_rows": -1}, "Mask's length_rows must be a number of 12 bits, not -1"),
        ({"diagonal": 4096}, "Mask's diagonal must be between -4096 and 4095, not 4096"),
        ({"diagonal": -4097}, "Mask's diagonal must be between -4096 and 4095, not -4097"),
    ])
    def test_mask(self, options, message):
        refuses(message, Mask, **options)

    @pytest.mark.parametrize(("shape", "options", "message"), [
        ((2, 3), {}, r"^Matrices must be float32 or int16 of shape \(count, rows, columns\), each at least 1, not "
                     r"float32 of \(2, 3\)$"),
        ((2, 0, 3), {}, r"each at least 1, not float32 of \(2, 0, 3\)$"),
        ((1, 4096, 1), {}, r"^Rows and columns must be at most 4095, not \(4096, 1\)$"),
        ((1, 2, 3), {"mask": Mask(external=True)},
         r"^External mask must be given where the mask is external, and only there, not none$"),
        ((1, 2, 3), {"external": np.ones((1, 2, 3), np.bool_)},
         r"^External mask must be given where the mask is external, and only there, not one$"),
        ((1, 2, 3), {"mask": Mask(external=True), "external": np.ones((2, 3), np.bool_)},
         r"^External mask must be bool of shape \(1, 2, 3\), not bool of \(2, 3\)$"),
    ])
    def test_job(self, shape, options, message):
        with pytest.raises(ValueError, match=message):
            MaskJob(matrices=np.zeros(shape, np.float32), **{"mask": Mask(), **options})

    def test_type(self):
        with pytest.raises(ValueError, match=r"not float64 of \(1, 1, 1\)$"):
            MaskJob(matrices=np.zeros((1, 1, 1)), mask=Mask())

    def test_no_room_for_a_matrix(self):
        job = MaskJob(matrices=np.zeros((1, 9, 5), np.float32), mask=Mask())
        refuses("Matrix of 9 x 5 must take at most the 64 elements of a node's gradient memory, not 72: take shorter "
                "sequences, or nodes with more gradient memory", plan, [job], lanes=4, elements=64, words=64)

    @pytest.mark.parametrize(("words", "external", "needed"), [(0, False, 32), (31, False, 32), (32, True, 34)])
    def test_no_room_for_a_job(self, words, external, needed):
        job = MaskJob(matrices=np.zeros((1, 9, 5), np.float32), mask=Mask(external=external),
                      external=np.ones((1, 9, 5), np.bool_) if external else None)
        refuses(f"Job and external mask of a matrix of 9 x 5 must take at most the {words} words of weight memory "
                f"that are free, not {needed}: take a smaller model, or nodes with more weight memory", plan, [job],
                lanes=4, elements=96, words=words)


class TestPlan:
    def test_words_of_a_job(self):
        mask = Mask(triangle=True, padding=True, external=True, diagonal=-2, length_rows=3, length_columns=4,
                    first_row=5, end_row=6, first_column=7, end_column=8, width=9)
        external = np.arange(2 * 3 * 6).reshape(2, 3, 6) % 3 == 0
        region, = plan([MaskJob(matrices=np.ones((2, 3, 6), np.float32), mask=mask, external=external)],
                       lanes=4, elements=64, words=64)
        expected = [0b1000101 | 2 << 16, 3 | 6 << 16, 2 * 3 * 8, 0xffff_fffe, 3 | 4 << 16, 5 | 6 << 16, 7 | 8 << 16,
                    9]
        assert region.words[:8].tolist() == expected
        assert not region.words[8:32].any()
        assert region.externals == 32
        assert np.array_equal(region.words[32:], golden.words(external))
        assert np.array_equal(region.data.reshape(6, 8), np.tile(bits_of([1, 1, 1, 1, 1, 1, 0, 0]), (6, 1)))

    def test_nothing(self):
        assert plan([], lanes=4, elements=64, words=64) == []

    def test_several_jobs_in_one_region(self):
        generator = np.random.default_rng(1)
        jobs = [random_job(generator, external=n % 2 == 0) for n in range(5)]
        region, = plan(jobs, lanes=4, elements=1 << 14, words=1 << 12)
        assert region.externals == 64
        words = [golden.words(job.external) for job in jobs if job.external is not None]
        assert np.array_equal(region.words[64:], np.concatenate(words))
        assert np.array_equal(region.data, np.concatenate(
            [golden.data_beats(job.matrices.view(np.uint32), 4).reshape(-1) for job in jobs]))

    @pytest.mark.parametrize(("elements", "words", "counts"), [
        (64, 32, [[3], [2], [2], [1]]),  # three 20-element matrices and two 32-element ones
        (84, 64, [[4], [1, 2], [1]]),
        (32, 32, [[1], [1], [1], [1], [1], [1], [1], [1]]),
        (1 << 10, 32, [[5, 3]]),
    ])
    def test_splits_between_matrices(self, elements, words, counts):
        jobs = [MaskJob(matrices=np.zeros((5, 5, 3), np.float32), mask=Mask()),
                MaskJob(matrices=np.zeros((3, 4, 5), np.float32), mask=Mask())]
        regions = plan(jobs, lanes=4, elements=elements, words=words)
        assert [[piece.count for piece in region.pieces] for region in regions] == counts

    def test_lists_fill_the_memory(self):
        jobs = [MaskJob(matrices=np.zeros((1, 1, 1), np.float32), mask=Mask()) for _ in range(9)]
        assert [len(region.pieces) for region in plan(jobs, lanes=1, elements=1 << 10, words=64)] == [8, 1]

    @pytest.mark.parametrize("seed", range(20))
    def test_everything_fits_and_comes_back(self, seed):
        generator = np.random.default_rng(seed)
        lanes = int(generator.choice([1, 2, 4, 8]))
        elements, words = int(generator.choice([576, 1024, 4096])), int(generator.choice([64, 96, 512]))
        jobs = [random_job(generator, count=9) for _ in range(12)]
        regions = plan(jobs, lanes=lanes, elements=elements, words=words)
        for region in regions:
            assert len(region.data) <= elements
            assert len(region.words) <= words
            assert region.externals % 32 == 0
        pieces = [piece for region in regions for piece in region.pieces]
        assert [piece.job for piece in pieces] == sorted(piece.job for piece in pieces)
        for number, job in enumerate(jobs):
            assert sum(piece.count for piece in pieces if piece.job == number) == job.count
        back = unpack(jobs, regions, [region.data for region in regions])
        for job, restored in zip(jobs, back, strict=True):
            assert np.array_equal(restored.view(np.uint32), job.matrices.view(np.uint32))


SMALL = NodeConfig(memories=Memories(gradient=576, weight=512, state=32))


class RecordedRing(GoldenRing):
    """Golden nodes that take one cycle per memory row and record their commands.

    Parameters
    ----------
    nodes : int
    statuses : dict of int to EventStatus, optional
        Status with which a node ends all its commands, keyed by rank.

    Members
    -------
    commands : list of list of Command
        Commands of each node.
    writes : list of list of str
        Registers that the host has written on each node.
    """

    def __init__(self, nodes, *, statuses=None):
        super().__init__(nodes, config=SMALL)
        self.golden.weights[:] = 0xbbbb_0002
        self.commands, self.writes = [[] for _ in range(nodes)], [[] for _ in range(nodes)]
        self._statuses, self._carry_out = statuses or {}, self.golden.carry_out
        self.golden.carry_out = self._record
        for device, names in zip(self.devices, self.writes, strict=True):
            device.submit_write_register = functools.partial(self._write, device.submit_write_register, names)

    def _record(self, ranks, commands, **options):
        events = self._carry_out(ranks, commands, **options)
        for rank in ranks:
            self.commands[rank].append(commands[rank])
        return {rank: dataclasses.replace(event, status=self._statuses.get(rank, event.status),
                                          cycles=commands[rank].length // SMALL.lanes)
                for rank, event in events.items()}

    def _write(self, submit, names, name, value):
        names.append(name)
        return submit(name, value)


class TestPasses:
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("behind", [0, 100, 384])
    def test_random(self, seed, behind):
        generator = np.random.default_rng(seed)
        ring = RecordedRing(3)
        jobs = [[random_job(generator, count=4) for _ in range(number)] for number in (7, 0, 3)]
        outcome = ring.local.mask(jobs, alternative=ALTERNATIVE, behind=behind)
        assert_masked(jobs, outcome)
        assert outcome.commands == max(map(len, ring.commands)) > 1
        assert not ring.commands[1]
        for command in itertools.chain(*ring.commands):
            assert command.weight_base % 32 == command.state_base % 32 == command.gradient_base == 0
        assert (ring.golden.weights[:, :behind] == 0xbbbb_0002).all()
        passes = itertools.zip_longest(*([command.length // 4 for command in own] for own in ring.commands),
                                       fillvalue=0)
        assert outcome.cycles == sum(map(max, passes))

    def test_nothing_at_all(self):
        outcome = RecordedRing(2).local.mask([[], []], alternative=0.0)
        assert (outcome.results, outcome.replaced, outcome.cycles, outcome.commands) == ([[], []], [0, 0], 0, 0)

    def test_alternative_is_sent_when_new(self):
        ring = RecordedRing(2)
        job = MaskJob(matrices=np.ones((1, 2, 2), np.float32), mask=Mask(triangle=True))
        for alternative in (0.0, 0.0, -0.0, 7.5):
            outcome = ring.local.mask([[job], []], alternative=alternative)
            assert bits_of(outcome.results[0][0])[0, 0, 1] == bits_of([alternative])[0]
        assert ring.writes == [["MASK_ALTERNATIVE"] * 3] * 2

    def test_wrong_number(self):
        refuses("Jobs must be one sequence per node, 2, not 1", RecordedRing(2).local.mask, [[]], alternative=0.0)

    def test_no_memory_left(self):
        job = MaskJob(matrices=np.ones((1, 2, 2), np.float32), mask=Mask())
        with pytest.raises(ValueError, match="the 0 words of weight memory that are free, not 32"):
            RecordedRing(1).local.mask([[job]], alternative=0.0, behind=500)

    def test_failure(self):
        ring = RecordedRing(3, statuses={1: EventStatus.BAD_MASK})
        job = MaskJob(matrices=np.ones((1, 2, 2), np.float32), mask=Mask())
        message = r"^mask failed: node 1: command with tag 1 ended with BAD_MASK: job 0 is wrong: "
        with pytest.raises(RingError, match=message) as caught:
            ring.local.mask([[], [job], [job]], alternative=0.0)
        assert caught.value.cause == 1
        statuses = [event and event.status for event in caught.value.events]
        assert statuses == [None, EventStatus.BAD_MASK, EventStatus.OK]

    def test_silence(self):
        ring = RecordedRing(1)
        ring.golden.push = lambda rank, command: ring.golden._queued[rank].append(command)
        refuses("sparsify failed: node 0: no event; running", ring.local.sparsify, 8, threshold=1.0, error=RingError)


def test_errors_of_sparsify_add_up():
    generator = np.random.default_rng(3)
    ring = RecordedRing(2)
    length = 100
    ring.memory.clear_errors(length)
    assert not ring.memory.read_errors(length).any()
    errors = np.zeros((2, length), np.uint32)
    for threshold in (1.0, 0.5, 0.5, 3.0):
        gradients = generator.standard_normal((2, length)).astype(np.float32)
        ring.memory.write_gradients(list(gradients))
        outcome = ring.local.sparsify(length, threshold=threshold)
        kept, errors = golden.sparsify(bits_of(gradients), errors, int(bits_of([threshold])[0]))
        assert np.array_equal(bits_of(ring.memory.read_gradients(length)), kept)
        assert np.array_equal(bits_of(ring.memory.read_errors(length)), errors)
        assert outcome.dropped == [int((row == 0).sum()) for row in kept]
        assert outcome.cycles == 25
    assert ring.writes[0].count("MASK_THRESHOLD") == 3
    assert {command.weight_base for command in ring.commands[0]} == {errors_base(length)} == {128}


def whole_ring(open_devices):
    ring = Ring(open_devices, timeout=3000)
    ring.connect()
    return ring


@pytest.fixture(scope="module")
def ring():
    with OpenRing(library(NodeConfig()), nodes=3, threads=1) as opened:
        yield whole_ring([Device(transport, NodeConfig(), name=f"node {rank}")
                          for rank, transport in enumerate(opened.transports)])


class TestVerilated:
    @pytest.mark.parametrize("seed", range(4))
    def test_mask(self, ring, seed):
        generator = np.random.default_rng(seed)
        jobs = [[random_job(generator, count=5, size=40) for _ in range(number)] for number in (9, 0, 14)]
        weights = generator.integers(0, 1 << 32, 15_232, dtype=np.uint32)
        ring.memory.write_weights(weights)
        ring.counters.clear()
        outcome = ring.local.mask(jobs, alternative=ALTERNATIVE, behind=weights.size)
        assert_masked(jobs, outcome)
        assert (bits_of(ring.memory.read_weights(weights.size)) == weights).all()
        counters = ring.counters.read()
        assert [counter["ELEMENTS_MASKED"] for counter in counters] == outcome.replaced
        words = [sum(len(golden.words(job.external)) for job in batch if job.external is not None) for batch in jobs]
        assert [counter["MASK_WORDS_FETCHED"] for counter in counters] == words

    def test_passes(self, ring):
        """Jobs with more elements than the gradient memory holds are split into several passes."""
        generator = np.random.default_rng(9)
        job = MaskJob(matrices=generator.standard_normal((70, 16, 16)).astype(np.float32),
                      mask=Mask(triangle=True, padding=True, length_rows=16, length_columns=11))
        outcome = ring.local.mask([[job], [], []], alternative=0.0)
        assert outcome.commands == 2
        assert_masked([[job], [], []], outcome, 0.0)

    def test_speed(self, ring):
        """Masking takes one cycle per memory row plus a small overhead."""
        job = MaskJob(matrices=np.ones((32, 16, 16), np.float32), mask=Mask(triangle=True))
        outcome = ring.local.mask([[job] * 2] * 3, alternative=0.0)
        assert 4096 <= outcome.cycles <= 4096 * 1.02

    def test_nothing_stays(self, ring):
        """After masking, collectives work as before."""
        ring.local.mask([[MaskJob(matrices=np.ones((1, 5, 5), np.float32), mask=Mask())]] * 3, alternative=0.0)
        ring.memory.write_gradients([np.full(64, rank + 1, np.float32) for rank in range(3)])
        ring.collectives.all_reduce(64)
        assert (ring.memory.read_gradients(64) == 6).all()

    def test_sparsify(self, ring):
        generator = np.random.default_rng(4)
        length = 4810
        weights = generator.standard_normal(length).astype(np.float32)
        ring.memory.write_weights(weights)
        ring.memory.clear_errors(length)
        errors = np.zeros((3, length), np.uint32)
        for threshold in (1.5, 1.0):
            gradients = generator.standard_normal((3, length)).astype(np.float32)
            gradients[:, :3] = [np.nan, np.inf, -0.0]
            ring.memory.write_gradients(list(gradients))
            outcome = ring.local.sparsify(length, threshold=threshold)
            kept, errors = golden.sparsify(bits_of(gradients), errors, int(bits_of([threshold])[0]))
            assert np.array_equal(bits_of(ring.memory.read_gradients(length)), kept)
            assert np.array_equal(bits_of(ring.memory.read_errors(length)), errors)
            assert outcome.dropped == [int((row == 0).sum()) for row in kept]
        assert (ring.memory.read_weights(length) == weights).all()


def test_pysim():
    """Complete nodes mask correctly in the Amaranth simulator."""
    config = NodeConfig(lanes=2, segment=32, memories=Memories(gradient=128, weight=160, state=32, planes=0))
    simulation = PysimRing(lambda: Node(config), nodes=1, latency=3)
    ring = whole_ring([Device(transport, config) for transport in simulation.transports])
    generator = np.random.default_rng(5)
    jobs = [[random_job(generator, count=2, size=6, external=external) for external in (False, True)]]
    assert_masked(jobs, ring.local.mask(jobs, alternative=ALTERNATIVE, behind=32))
    ring.memory.clear_errors(40)
    gradients = generator.standard_normal(40).astype(np.float32)
    ring.memory.write_gradients([gradients])
    outcome = ring.local.sparsify(40, threshold=1.0)
    assert outcome.dropped == [int((np.abs(gradients) < 1).sum())]
    assert np.array_equal(ring.memory.read_errors(40)[0], np.where(np.abs(gradients) < 1, gradients, 0))
