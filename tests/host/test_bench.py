"""Rows of the benchmark, measured on rings that other tests have too."""

from types import SimpleNamespace

import pytest

from hdl.config import NodeConfig
from hdl.quantization.engine import infer_cycles
from host import bench
from host.device import Device
from host.ring import Ring
from sim.golden import ring as golden
from tests.host import rings, test_codebooks, test_gradient_codecs


def measured(config, nodes, rows, **options):
    with rings.open_nodes(nodes, config=config) as (ring, _):
        return {(row["name"], row["config"]): row for row in rows(ring, **options)}


class TestRing:
    def test_without_codecs(self):
        """Closed forms of the bounds; every kind of row."""
        length, nodes = 2048, 2
        rows = measured(NodeConfig(), nodes, bench.ring_rows, length=length)
        dense, sparse = f"N=2, K={length}, dense", f"N=2, K={length}, sparse 10%"
        kinds = [f"ring.{name}{end}" for name in ("all_reduce", "fused_update") for end in ("", ".scatter_reduce")]
        assert set(rows) == {(kind, config) for kind in kinds for config in (dense, sparse)} | {
            ("ring.fused_update", f"{dense}, Adam")}
        assert [rows[kind, dense]["bound"] for kind in kinds] == [
            2 * length // 2 * 33 // 32, length // 2 * 33 // 32, length // 2 * 33 // 32 + length // 2,
            length // 2 * 33 // 32]
        for row in rows.values():
            assert row["measured"] > 0.6 * row["bound"], row
            assert row["ratio"] == row["measured"] / row["bound"]
            assert row["measured"] < 1.5 * row["bound"] + 200, row

    def test_weights_and_gradients_through_codecs(self):
        """Of two nodes the optimizer takes longest, of four the link."""
        length = 4096
        for nodes, bound in ((2, length // 2), (4, 3 * 4 * (72 + 72))):
            rows = measured(test_gradient_codecs.BOTH, nodes, bench.ring_rows, length=length)
            config = f"N={nodes}, K={length}, dense, weights mx9, gradients mx9"
            assert {name for name, _ in rows} == {
                "ring.all_reduce", "ring.all_reduce.scatter_reduce", "ring.fused_update",
                "ring.fused_update.scatter_reduce"}
            assert {found for _, found in rows} == {config}
            update, scatter = (rows[f"ring.fused_update{phase}", config] for phase in ("", ".scatter_reduce"))
            assert update["bound"] == bound
            assert scatter["bound"] == (nodes - 1) * length // 256 // nodes * 72
            assert bound < update["measured"] < 1.25 * bound + 400
            assert scatter["bound"] < scatter["measured"] < update["measured"]

    def test_codebook(self):
        """It is loaded, so that words are those of the model."""
        length, nodes = 1024, 2
        with rings.open_nodes(nodes, config=test_codebooks.CONFIGS["table32"]) as (ring, _):
            rows = bench.ring_rows(ring, length=length)
            assert [row["name"] for row in rows] == ["ring.fused_update", "ring.fused_update.scatter_reduce"]
            assert rows[0]["config"] == f"N={nodes}, K={length}, dense, weights table32, gradients zero_value"
            gathered = rows[0]["bound"] - rows[1]["bound"]
            sent = [counters["WORDS_SENT"] for counters in ring.counters()]
        packets = 2 * length // nodes // 64
        assert rows[1]["bound"] == 33 * length // nodes // 32
        assert max(sent) == rows[1]["bound"] + gathered + packets * golden.PACKET_OVERHEAD
        assert gathered < length // nodes // 2
        assert rows[0]["bound"] < rows[0]["measured"]

    @pytest.mark.parametrize(("interval", "lanes", "bound"), [(1, 1, 704), (2, 1, 1408), (4, 8, 352), (1, 8, 330)])
    def test_bound_of_an_update(self, interval, lanes, bound):
        """The optimizer's rate counts where it takes longer than links: 44 groups are 22 to a node."""
        config = NodeConfig(lanes=8, update_interval=interval, update_lanes=lanes)
        ring = Ring([Device(None, config)] * 2)
        assert bench.update_bound(ring, SimpleNamespace(bound=330), 1380) == bound


def test_inference():
    """As many cycles as the engine says, and no more than a unit may take."""
    (row,) = measured(NodeConfig(**rings.WHOLE), 1, bench.infer_rows).values()
    assert (row["name"], row["config"]) == ("node.infer", "2 layers of 64 x 64, 16 samples")
    assert row["measured"] == infer_cycles([(64, 64), (64, 64)], 16, lanes=4)
    assert row["bound"] == 16 * 2 * 64 * 4
    assert not bench.missed(row)
