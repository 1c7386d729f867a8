"""The training option --slow-link, and the table of `make slow-link`."""

from fractions import Fraction

import pytest

from hdl.config import Memories, NodeConfig, RootReduce
from host.features.programs.schedules import fused
from host.labs.slow_link.lab import BARS, CASES, Case, Row, table
from host.run.slow_link import SlowLink, partition, with_option
from host.transports.session import TransportName, open_session
from tests.host.rings import CONFIGS, open_nodes
from tests.refusals import refuses

VERILATED = TransportName.VERILATED


def test_parse():
    assert SlowLink.parse("2:0.5") == (2, Fraction(1, 2))
    assert SlowLink.parse("0:1/3") == (0, Fraction(1, 3))
    for text in ("2", "2:", ":0.5", "-1:0.5", "2:0", "2:1.5", "2:1/0", "a:b"):
        refuses(f"Slow link must be a rank and a rate above 0 and up to 1, like 2:0.5, not {text!r}", SlowLink.parse,
                text)


def test_check():
    SlowLink(3, Fraction(1, 2)).check(nodes=4)
    refuses("Slow link must be from a rank below 3, not 3", SlowLink(3, Fraction(1, 2)).check, nodes=3)
    with pytest.raises(ValueError, match=r"^Slow link must be that of a rank below 2 on transport verilated, not of "
                                         r"2 on verilated$"), open_session(
            NodeConfig(), nodes=2, slow_link=(2, Fraction(1, 2))):
        pass


def test_node():
    """For an optimizer with state, each node gets enough memory for the state of all groups."""
    node = NodeConfig(memories=Memories(state=2048))
    assert with_option(node, 4810, planes=1) == NodeConfig(memories=Memories(state=8192), role=RootReduce())
    assert with_option(node, 4810, planes=0) == NodeConfig(memories=Memories(state=2048), role=RootReduce())


def test_partition():
    """The node that sends on a slow link becomes the root if this is faster, and a printed line reports it."""
    said = []
    with open_nodes(4, config=CONFIGS["engines"], host_port=False, timeout=40000) as (ring, simulation):
        result = partition(ring, 2048, planes=0, latency=16, say=said.append)
        assert (result["root"], ring.partition.root, result["order"]) == (None, None, "from the rank of its block on")
        simulation.links[3].set_rate(1, 2)
        result = partition(ring, 2048, planes=0, latency=16, say=said.append)
        assert (result["root"], ring.partition.root, result["slowest"]) == (3, 3, 3)
        assert result["order"] == "from rank 0 to rank 3"
        assert result["rates"][3] == pytest.approx(0.5, abs=0.02)
        assert result["cycles"]["root_reduce"] < 0.95 * result["cycles"]["block_offset"]
        for kind, cycles in result["cycles"].items():
            assert result["modelled"][kind] == pytest.approx(cycles, rel=0.1)
        assert "all blocks at rank 3" in said[-1]


def test_table():
    """Each limit has a test case, and each row of the table shows the figures of its case."""
    for nodes, length in BARS:
        assert Case(nodes=nodes, length=length) in CASES
    row = Row(case=CASES[0], clean=25488, block_offset=50826, root_reduce=33996, modelled_block_offset=50800,
              modelled_root_reduce=34000, measured=0.5, root=1)
    assert row.bar == 1.36
    sparse = Row(case=CASES[-2], clean=100, block_offset=120, root_reduce=110, modelled_block_offset=1,
                 modelled_root_reduce=1, measured=0.5, root=None)
    printed = table([row, sparse])
    assert printed.headings[4:8] == ["block offset", "root reduce", "block offset, modelled", "root reduce, modelled"]
    assert printed.cells == [
        ["4", "16,384", "0.50", "25,488", "1.994", "1.334", "1.993", "1.334", "0.50", "root reduce"],
        ["8", "16,384", "0.50, 10% not zero", "100", "1.200", "1.100", *["not modelled"] * 2, "0.50", "block offset"]]
    assert sparse.bar is None


def test_step_of_a_run():
    """Even a run without a schedule uses a program, which consists of one update, optionally with a single root."""
    for owner, fields in ((None, (0, 0)), (2, (2, 1))):
        program = fused(500, owner=owner)
        update, = (command for queue in program.commands(1, 4) for command in queue)
        assert (update.root, update.root_reduce, update.length) == (*fields, 500)
