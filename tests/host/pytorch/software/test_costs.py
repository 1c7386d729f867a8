"""Figures of a ring in software equal the figures of golden nodes; operations that ranks announce are recorded."""

import dataclasses
import re

import numpy as np
import pytest

from hdl.registry import FEATURES
from host.jobs import checks
from host.jobs.simulate import node_for, simulate
from host.pytorch.jobs import Kind, Options
from host.pytorch.messages import Announce
from host.pytorch.software.costs import JobCosts
from host.pytorch.software.record import AnnouncedOperations
from host.training.optimizers import SGD, AdamW
from host.transports.session import TransportName

#: Figures that depend on the data, or on the computer.
OTHERS = {"words_zero_value": 0, "sent": 0, "nonzeros": 0, "seconds": 0.0}
CODECS = [("raw", "raw"), *([("mx9", "mx6"), ("mxfp4_e2m1", "raw")] if "mx" in FEATURES else []),
          *([("bf16", "bf16")] if "bf16" in FEATURES else [])]


@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("nodes", [1, 3, 4])
def test_figures(nodes, codecs):
    """All figures of sums and updates equal the figures of golden nodes, for vectors of one and of several parts."""
    formats = dict(zip(("gradients", "weights"), codecs, strict=True))
    rng = np.random.default_rng(nodes)
    for lengths in ([5000], [100, 140_001]):
        length = checks.groups_of(lengths)[-1].stop
        optimizers = [AdamW(1e-3)] * len(lengths)
        with simulate(nodes=nodes, length=lengths, optimizer=optimizers, transport=TransportName.GOLDEN,
                      **formats) as job:
            costs = JobCosts(node_for(length, nodes=nodes, optimizer=optimizers[0], **formats), lengths, nodes=nodes,
                             latency=16, optimizers=optimizers)
            used = [*optimizers[1:], None]
            gradients = rng.standard_normal((nodes, length)).astype(np.float32)
            for expected, figures in ((job.step(gradients, used)[1], costs.step(used)),
                                      (job.all_reduce(gradients[:, :777], begin=64)[1],
                                       costs.all_reduce(777, begin=64))):
                assert dataclasses.replace(expected, **OTHERS) == figures


def announced(ranks=3, **options):
    return [Announce(operation="an operation", **options) for _ in range(ranks)]


def test_record():
    """Jobs are numbered as ranks number them, also after a sum that belongs to no job."""
    operations = AnnouncedOperations(Options(nodes=3, transport=Kind.SOFTWARE))
    operations.answer(announced(kind="all_reduce", count=100))
    operations.answer(announced(kind="open", lengths=(64,), optimizers=(SGD(0.1),)))
    operations.answer(announced(kind="step", job=0, present=((True,),), names=(("weight",),), optimizers=(SGD(0.1),),
                                norm=2.0, seconds=0.5))
    operations.spend(0.25)
    assert [(operation.kind, operation.job, operation.figures.elements, operation.norms, operation.figures.seconds)
            for operation in operations.operations] == [("all_reduce", 0, 100, (), 0.5),
                                                        ("step", 1, 64, (2.0, 2.0, 2.0), 0.25)]
    assert len(operations) == 2


@pytest.mark.parametrize(("changed", "text"), [
    ({"contents": "other"}, "Weights and state of rank 2 must be those of rank 0: broadcast them first, as "),
    ({"optimizers": (SGD(0.5),)}, "Optimizer of rank 2 must be that of rank 0, SGD("),
    ({"present": ((False, True),)}, "Parameters of a group must all have a gradient on some rank, or none of them; "),
])
def test_differences(changed, text):
    """Ranks that differ get an error, and nothing is recorded."""
    operations = AnnouncedOperations(Options(nodes=3, transport=Kind.SOFTWARE))
    operations.answer(announced(kind="open", lengths=(64,), optimizers=(SGD(0.1),)))
    step = announced(kind="step", job=0, present=((False, False),), names=(("a", "b"),), optimizers=(SGD(0.1),))
    with pytest.raises(ValueError, match=re.escape(text)):
        operations.answer([*step[:2], dataclasses.replace(step[2], **changed)])
    assert not operations.operations
