"""Random programs on rings with two or three queues: a sample of the programs that ``make random-programs`` runs."""

import numpy as np
import pytest

from host.features.programs.program import Queue
from tests.host import rings
from tests.programs.generator import random_case
from tests.programs.play import play_part


@pytest.mark.parametrize(("name", "nodes", "programs"), [
    ("centroid", 1, 10), ("wide", 2, 10), ("table", 3, 10), ("mx9", 4, 10)])
def test_sample(name, nodes, programs):
    part = play_part(name, nodes, 1000, programs)
    assert not part["difference"], part["difference"]
    assert part["programs"] == programs


@pytest.mark.parametrize(("nodes", "programs"), [(2, 6), (3, 6), (4, 8)])
def test_sample_of_waits_for_nodes(nodes, programs):
    """Commands that wait for commands on other nodes run correctly even on links with faults."""
    part = play_part("wide", nodes, 1000, programs, remote=True, faults=1e-3)
    assert not part["difference"], part["difference"]
    assert part["programs"] == programs
    assert part["remote_waits"] > 3 * programs
    assert part["faults"]


def test_generator():
    """Among random programs, there are all operations, waits within and between passes, and one or both queues."""
    operations, lags, queues = set(), set(), set()
    for seed in range(120):
        program = random_case(np.random.default_rng(seed), rings.CONFIGS["centroid"], 2).program
        operations |= {task.operation for task in program.tasks}
        lags |= {wait.lag for _, _, wait in program.waits()}
        queues.add(frozenset(task.queue for task in program.tasks))
    assert operations == {"COMPUTE", "QUIESCE", "LATCH", "FUSED_UPDATE", "ALL_REDUCE", "REDUCE_SCATTER", "ALL_GATHER",
                          "BROADCAST", "MOVE_OUT", "MOVE_IN"}
    assert lags == {0, 1, 2, 3}
    waits = [remote for seed in range(20) for _, _, remote in random_case(
        np.random.default_rng(seed), rings.CONFIGS["wide"], 4, remote=True).program.remote_waits()]
    assert {wait.lag for wait in waits} == lags
    assert {(wait.unit, wait.queue) for wait in waits} == {
        (unit, queue) for unit in range(4) for queue in (Queue.COMPUTE, Queue.COMMUNICATE)}
    assert queues >= {frozenset({queue}) for queue in Queue} | {frozenset(Queue)}
