"""Jobs that cannot run are rejected before anything is built."""

import re

import pytest

from hdl.config import Memories, NodeConfig, SingleRing, Weights
from hdl.features.int16.feature import Int16Config
from host.jobs import simulate as module
from host.jobs.checks import check_job, groups_of
from host.jobs.simulate import LARGEST, node_for, simulate
from host.training.optimizers import SGD, Adam
from tests.present import needs
from tests.refusals import refuses

CASES = {
    "length": ({"length": 0}, "Length must be an integer from 1 to 268435456, or a sequence of them, not 0"),
    "lengths": ({"length": []}, "Length must be an integer from 1 to 268435456, or a sequence of them, not []"),
    "optimizers": ({"length": [10, 10], "optimizer": [SGD(0.1)]},
                   "Optimizers must be one for each of 2 groups, not 1"),
    "planes": ({"length": [10, 10], "optimizer": [SGD(0.1), Adam()]},
               "Optimizers of a job must have the same number of state planes, not 0, 2: take a job for each"),
    "codebook": ({"weights": "centroid16"}, "Weight codec of a job must be one without a codebook, not centroid16"),
    "codec": ({"gradients": "mx10"}, "Gradients must be None or one of "),
    "integers": ({"node": Int16Config(), "nodes": 1},
                 "Nodes of a job must have elements of fp32, not of int16"),
    "density": ({"density": 1.5}, "Density must be None or a finite number above 0 and at most 1, not 1.5"),
    "feedback": ({"density": 0.5, "node": NodeConfig(sparsify=False)},
                 "Nodes must have error feedback for a density, to keep the elements that they do not send"),
    "part": ({"part": 100}, "Part must be a positive multiple of 32 of at most 16,384 elements, not 100"),
    "long part": ({"part": 16416}, "Part must be a positive multiple of 32 of at most 16,384 elements, not 16416"),
    "updated part": ({"part": 160, "optimizer": Adam()},
                     "Part must be a positive multiple of 128 of at most 16,384 elements, not 160"),
    "nodes": ({"nodes": 256}, "Nodes must be an integer from 1 to 255, not 256"),
    "both": ({"node": NodeConfig(), "gradients": "mx9"}, "Codecs must be left out with a node, which has its own"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case, monkeypatch):
    monkeypatch.setattr(module, "open_session", None)  # nothing is built
    options, message = CASES[case]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        simulate(**{"nodes": 4, "length": 100, **options})


def test_groups():
    assert groups_of([32, 1, 33]) == [slice(0, 32), slice(32, 33), slice(64, 97)]
    assert check_job(NodeConfig(), [40_000], nodes=2) == 16_384
    assert check_job(NodeConfig(), [40_000], nodes=2, part=64) == 64
    # In an update, each node's share of a part is a multiple of 32 elements.
    assert check_job(NodeConfig(), [40_000], nodes=3) == 16_384
    assert check_job(NodeConfig(), [40_000], nodes=3, optimizers=[Adam()]) == 16_320
    assert check_job(NodeConfig(), [16_384], nodes=3, optimizers=[Adam()]) == 16_384
    refuses("Memories must have room for parts of 96 elements, or for all 65, not for 64", check_job,
            NodeConfig(memories=Memories(gradient=64, weight=64, state=64)), [65], nodes=3, optimizers=[Adam()])


@pytest.mark.parametrize(("length", "options", "expected"), [
    (10_000, {}, {}),
    (10_000, {"optimizer": Adam()}, {}),
    (10_000, {"optimizer": SGD(0.1)}, {"memories": Memories(planes=0)}),
    (10_000, {"optimizer": SGD(0.1, momentum=0.9), "density": 0.1}, {"memories": Memories(weight=32_768, planes=1)}),
    (101_770, {"optimizer": Adam()}, {"memories": Memories(gradient=LARGEST, weight=LARGEST, state=32_768)}),
    (10 ** 7, {}, {"memories": Memories(gradient=LARGEST, weight=LARGEST)}),
])
def test_nodes(length, options, expected):
    expected = {"gradients": "zero_value" if "density" in options else "raw", **expected}
    assert node_for(length, nodes=4, **options) == NodeConfig(**expected)


def test_nodes_with_codecs():
    needs("bf16", "mx")
    assert node_for(100, nodes=4, gradients="mx9", weights="bf16") == NodeConfig(
        gradients="mx9", weights=Weights(codec="bf16"))


@pytest.mark.parametrize(("nodes", "most"), [(1, 16), (16, 16), (17, 255), (255, 255)])
def test_nodes_of_large_rings(nodes, most):
    assert node_for(100, nodes=nodes) == NodeConfig(topology=SingleRing(max_nodes=most), gradients="raw")
