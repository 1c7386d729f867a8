"""Test the concepts page: its example prints the results shown, and its terms match its table."""

import contextlib
import io
import re
from pathlib import Path

import numpy as np

import gradring
from hdl.config import NodeConfig
from hdl.registry import section
from hdl.ring.header import OVERHEAD_WORDS, packet_words
from sim.golden.codecs import CODECS
from sim.golden.ring import segment_indices
from tests.present import needs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/concepts.md").read_text()
LENGTH, NODES = 4810, 4


def test_segments():
    """The Python block on the page prints the lengths shown there, and the figure shows the first block."""
    ((source, expected),) = re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(source, {})
    assert printed.getvalue() == expected
    blocks = segment_indices(LENGTH, NODES, NodeConfig().segment)
    assert [len(segment) for segment in blocks[0]] == [256, 256, 256, 256, 192]
    assert "= 1,216 elements  = segments of 256, 256, 256, 256 and 192" in PAGE
    assert sum(map(len, blocks[0])) == max(sum(map(len, block)) for block in blocks) == 1216
    assert [element // 32 for element in (blocks[0][-1][-1], blocks[2][-1][-1])] == [148, 150]
    packets = NODES * len(blocks[0]) * 2 * (NODES - 1)
    assert f"4 blocks · 5 segments · 6 hops = {packets} packets" in " ".join(PAGE.split())


def test_default_node():
    node = NodeConfig()
    assert (node.segment, node.lanes, node.link.ingress, node.topology.max_nodes) == (256, 4, 4, 16)
    assert (node.memories.gradient, node.memories.weight, node.memories.state, node.memories.planes) == (
        16384, 16384, 8192, 2)
    assert (node.gradients, node.weights.codec, node.weights.master, node.programs) == (
        "zero_value", "raw", False, None)
    assert (OVERHEAD_WORDS + 256, packet_words(256)) == (260, 268)


def test_fused_update():
    """Counters of simulated nodes match the numbers of packets and bursts stated in the example."""
    with gradring.simulate(nodes=NODES, length=LENGTH, node=NodeConfig(), optimizer=gradring.SGD(0.1)) as job:
        job.load(np.zeros(LENGTH, np.float32))
        counters = job.session.ring.counters
        counters.clear()
        job.step(np.ones((NODES, LENGTH), np.float32))
        counts = counters.read()
    assert [node["OPTIMIZER_BURSTS"] for node in counts] == [5] * NODES
    assert sum(node["PACKETS_SENT"] for node in counts) == 120
    assert "In the example, a fused update takes 5 bursts on each node" in " ".join(PAGE.split())


def test_mx9():
    needs("mx")
    assert CODECS["mx9"].max_words(256) == 72


def test_features():
    """The figure on the page names the features of each configuration."""
    needs("mx", "replay", "programs")
    shown = dict(re.findall(r"^ (NodeConfig\(.*\)) +core(?: \+ (.*))?$", PAGE, re.MULTILINE))
    assert len(shown) == 3
    names = {"NodeConfig": NodeConfig, "Replay": section("Replay"), "Programs": section("Programs")}
    for source, features in shown.items():
        assert " + ".join(eval(source, names).feature_names) == features, source


def test_words():
    """Each term in the table is defined in the section that the table refers to."""
    rows = re.findall(r"^\| \[[^\]]*\]\(#([\w-]+)\) \| (.*) \|$", PAGE, re.MULTILINE)
    sections = {title.lower().replace(" ", "-"): text
                for title, text in re.findall(r"^## (.*)\n((?:(?!## ).*\n)+)", PAGE, re.MULTILINE)}
    assert [anchor for anchor, _ in rows] == list(sections)
    for anchor, words in rows:
        entries = {entry.lower() for entry in re.findall(r"\*\*(.*?)\*\*", sections[anchor])}
        assert set(words.split(", ")) <= entries, anchor
