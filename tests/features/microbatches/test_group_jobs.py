# amaranth: UnusedElaboratable=no
"""Read jobs for groups of several vectors: hdl/features/microbatches/group_jobs.py."""

import dataclasses

import numpy as np
import pytest

from hdl.features.microbatches.group_jobs import GroupJobs
from hdl.group import GROUP
from hdl.memory import job_layout
from sim.payload import pack
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers
from tests.refusals import refused_values

#: Number of elements in the longest packet.
LONGEST = 512
#: Number of rows and number of lanes of the memories.
MEMORIES = [(4096, 1), (2048, 2), (1536, 4), (1024, 8)]
#: Numbers of vectors to test: small numbers and the largest one.
COUNTS = (*range(1, 9), 255)
#: Packet lengths in elements: whole groups, short last groups, and a single short group.
LENGTHS = (LONGEST, 1, 32, 33, 64, 1, 31, 65, LONGEST - 31, 2, 480)


@dataclasses.dataclass(frozen=True)
class Jobs:
    """Jobs of packets, each given as (first row, element count), and the distances between vectors and groups."""

    memory: tuple
    packets: list
    addends: int
    distance: int
    pitch: int

    def divided(self):
        """For each packet, the jobs that it is divided into, each as (first row, element count)."""
        height = GROUP // self.memory[1]
        return [[(row + group * self.pitch * height + addend * self.distance, min(GROUP, count - start))
                 for group, start in enumerate(range(0, count, GROUP)) for addend in range(self.addends)]
                for row, count in self.packets]

    def rows(self, jobs):
        """Payloads of a stream of jobs."""
        first, counts = zip(*jobs, strict=True)
        return pack(job_layout(self.memory[0], LONGEST), {"row": first, "count": counts})

    def drive(self):
        return Drive({"i": self.rows(self.packets)}, self,
                     {"addends": self.addends, "distance": self.distance, "pitch": self.pitch},
                     cycles=8 * sum(map(len, self.divided())) + 1500)


def draw(generator, memory, addends, lengths=(*LENGTHS, *LENGTHS[::-1])):
    """Draw packets of the given lengths, in random order, at random rows such that all jobs fit in the memory."""
    rows, lanes = memory
    height, groups = GROUP // lanes, -(-max(lengths) // GROUP)
    # Within the rows that the longest packet leaves free, draw the pitch first, and then the distance from the rows
    # that remain.
    spare = rows - height * groups
    pitch = 1 + int(generator.integers(spare // height // max(groups - 1, 1) + 1))
    spare = rows - height * ((groups - 1) * pitch + 1)
    distance = int(generator.integers(spare // max(addends - 1, 1) + 1))
    spare -= (addends - 1) * distance
    first = height * generator.integers(spare // height + 1, size=len(lengths))
    return Jobs(memory, list(zip(first.tolist(), generator.permutation(lengths).tolist(), strict=True)), addends,
                distance, pitch)


def _drive(generator, *memory):
    return draw(generator, memory, int(generator.choice([1, 1, 2, 3, 4, 7]))).drive()


def _model(_, jobs, willing, ready):
    return Want({}, {"o": jobs.rows([job for packet in jobs.divided() for job in packet])})


BENCH = UnitBench(lambda rows, lanes: GroupJobs(rows=rows, lanes=lanes, elements=LONGEST), _model, _drive)
test_jobs = BENCH.lockstep(MEMORIES)
test_resets = BENCH.resets(MEMORIES[1:3], (1, 2, 3, 5, 8, 17, 40))
test_lanes = refused_values(GroupJobs, {"rows": 64, "elements": 32}, "lanes", [0, 3, 16, "4"],
                            "Lane count must be 1, 2, 4 or 8")


def test_vectors():
    """Known jobs for two packets of three vectors: 35 elements each at a pitch of 5 groups, and one element each."""
    jobs = Jobs((1536, 4), [(32, 35), (8, 1)], addends=3, distance=100, pitch=5)
    assert jobs.divided() == [[(32, 32), (132, 32), (232, 32), (72, 3), (172, 3), (272, 3)],
                              [(8, 1), (108, 1), (208, 1)]]
    run = BENCH.check(jobs.memory, drive=jobs.drive())
    assert run.moves("i").tolist() == [0, 7]
    assert run.moves().tolist() == [*range(1, 7), 8, 9, 10]


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_latency_and_rate(memory):
    """One job is offered per cycle, with one idle cycle between packets; the number of vectors may change."""
    for turn, addends in enumerate(COUNTS):
        run = BENCH.check(memory, drive=draw(np.random.default_rng(addends), memory, addends).drive(), reset=not turn)
        sizes = np.array(list(map(len, run.drive.drawn.divided())))
        ends = np.cumsum(sizes + 1)
        starts = ends - sizes - 1
        assert run.moves("i").tolist() == starts.tolist()
        assert run.moves().tolist() == [
            start + GroupJobs.latency + job for start, size in zip(starts, sizes, strict=True) for job in range(size)]
        # A packet's job is accepted only after the last job of the previous packet has been transferred.
        np.testing.assert_array_equal(run.trace["i__ready"], 1 - run.trace["o__valid"])


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_each_number_of_groups(memory):
    """Jobs are correct for packets of 1 to 16 groups with a last group of 1, 31 or 32 elements."""
    lengths = [groups * GROUP - missing for groups in range(1, LONGEST // GROUP + 1) for missing in (0, 1, 31)]
    for addends in (1, 2, 3):
        BENCH.check(memory, drive=draw(np.random.default_rng(addends), memory, addends, lengths).drive())


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_limits(memory):
    """Jobs are correct for the largest distances and pitches, at the end of memory, and with overlapping vectors."""
    rows, lanes = memory
    height = GROUP // lanes
    for packet, addends, distance, pitch in (
            ((0, 1), 2, rows - 1, 1), ((0, GROUP + 1), 1, 1, rows // height - 1),
            ((rows - height, GROUP), 1, rows - 1, rows // height - 1), ((0, GROUP), 2, rows - height, 1),
            ((height, 3 * GROUP), 255, (rows - 4 * height) // 254, 1), ((height, 3 * GROUP), 3, 0, 0)):
        jobs = Jobs(memory, [packet] * 2, addends, distance, pitch)
        assert max(row for job in jobs.divided() for row, _ in job) < rows
        BENCH.check(memory, drive=jobs.drive())


def test_offers():
    """Every offered job stays valid until it is accepted, for any number of vectors and any distance."""
    offers(lambda: GroupJobs(rows=64, lanes=8, elements=64), depth=4)()
