"""Rows of the benchmark, measured on rings that other tests use too."""

from types import SimpleNamespace

import pytest

from hdl.config import NodeConfig, Optimizer
from hdl.features.quantization.engine import infer_cycles
from host.driver.device import Device
from host.driver.ring import Ring
from host.labs.bench import bench
from sim.golden import ring as golden
from tests.host import rings


def measured(config, nodes, rows, **options):
    with rings.open_nodes(nodes, config=config) as (ring, _):
        return {(row["name"], row["config"]): row for row in rows(ring, **options)}


class TestRing:
    def test_without_codecs(self):
        """Bounds equal their closed forms, and each collective has a row for each kind of data."""
        length, nodes = 2048, 2
        rows = measured(NodeConfig(), nodes, bench.ring_rows, length=length)
        dense, sparse, apart = (f"N=2, K={length}, {kind}" for kind in ("dense", "sparse 10%", "sparse apart 10%"))
        kinds = [f"ring.{name}{end}" for name in ("all_reduce", "fused_update") for end in ("", ".scatter_reduce")]
        kinds.append("ring.reduce_scatter")
        assert set(rows) == {(kind, config) for kind in kinds for config in (dense, sparse)} | {
            ("ring.fused_update", f"{dense}, Adam"), ("ring.all_reduce", apart),
            ("ring.all_reduce.scatter_reduce", apart)}
        assert rows["ring.all_reduce", apart]["bound"] > rows["ring.all_reduce", sparse]["bound"]
        assert [rows[kind, dense]["bound"] for kind in kinds] == [
            2 * length // 2 * 33 // 32, length // 2 * 33 // 32, length // 2 * 33 // 32 + length // 2,
            length // 2 * 33 // 32, length // 2 * 33 // 32]
        for row in rows.values():
            assert row["measured"] > 0.6 * row["bound"], row
            assert row["ratio"] == row["measured"] / row["bound"]
            most = 2.5 if (row["name"], row["config"]) == ("ring.reduce_scatter", sparse) else 1.5
            assert row["measured"] < most * row["bound"] + 200, row

    def test_weights_and_gradients_through_codecs(self):
        """With two nodes, the optimizer is the bottleneck; with four, it is the link."""
        length = 4096
        for nodes, bound in ((2, length // 2), (4, 3 * 4 * (72 + 72))):
            rows = measured(rings.CONFIGS["mx9"], nodes, bench.ring_rows, length=length)
            config = f"N={nodes}, K={length}, dense, weights mx9, gradients mx9"
            assert {name for name, _ in rows} == {
                "ring.all_reduce", "ring.all_reduce.scatter_reduce", "ring.reduce_scatter", "ring.fused_update",
                "ring.fused_update.scatter_reduce"}
            assert {label for _, label in rows} == {config}
            update, scatter = (rows[f"ring.fused_update{phase}", config] for phase in ("", ".scatter_reduce"))
            assert update["bound"] == bound
            assert scatter["bound"] == (nodes - 1) * length // 256 // nodes * 72
            assert bound < update["measured"] < 1.25 * bound + 400
            assert scatter["bound"] < scatter["measured"] < update["measured"]

    @pytest.mark.parametrize(("codec", "config", "cycles", "ratio", "shown"), [
        ("zero_value", "dense", 1600, 0.95 / 0.96, "0.96"), ("zero_value", "sparse 10%", 320, 5 / 4.8, "4.80"),
        ("zero_value", "sparse apart 10%", 640, 1 / 2.4, "2.40"),
        ("mx9", "dense, weights raw, gradients mx9", 480, 3.35 / 3.2, "3.20")])
    def test_effective_bandwidth(self, codec, config, cycles, ratio, shown):
        """Bandwidth is based on the raw words of 2 (N - 1) blocks per link, and is shown only for all-reduces."""
        measured = [{"name": name, "config": config, "measured": cycles} for name in ("ring.all_reduce", "node.mask")]
        row, = bench.bandwidth_rows(measured, nodes=4, codec=codec, length=1024)
        assert row["config"] == f"{config}, {shown} x the link's"
        assert row["measured"] == cycles / 1536
        assert row["ratio"] == pytest.approx(ratio)

    def test_codebook(self):
        """The codebook is loaded before the measurement, so that the number of words matches the model."""
        length, nodes = 1024, 4
        with rings.open_nodes(nodes, config=rings.CONFIGS["table"]) as (ring, _):
            rows = {row["name"]: row for row in bench.ring_rows(ring, length=length)}
            sent = [counters["WORDS_SENT"] for counters in ring.counters.read()]
        update, scatter = rows["ring.fused_update"], rows["ring.fused_update.scatter_reduce"]
        assert update["config"] == f"N={nodes}, K={length}, dense, weights table32, gradients mxfp8_e4m3"
        segments = (nodes - 1) * length // nodes // 64
        gathered = update["bound"] - scatter["bound"]
        assert scatter["bound"] == 17 * segments
        assert max(sent) == update["bound"] + 2 * segments * golden.PACKET_OVERHEAD
        assert gathered < 64 * segments // 2
        assert update["bound"] < update["measured"]

    @pytest.mark.parametrize(("interval", "lanes", "bound"), [(1, 1, 704), (2, 1, 1408), (4, 8, 352), (1, 8, 330)])
    def test_bound_of_an_update(self, interval, lanes, bound):
        """If the optimizer is slower than the links, it determines the bound of an update. Each node has 22 of the 44
        groups."""
        config = NodeConfig(lanes=8, optimizer=Optimizer(lanes=lanes, interval=interval))
        ring = Ring([Device(None, config)] * 2)
        assert bench.update_bound(ring, SimpleNamespace(bound=330), 1380) == bound


def test_inference():
    """An inference takes the predicted number of cycles, which is close enough to the bound."""
    (row,) = measured(rings.CONFIGS["engines"], 1, bench.infer_rows).values()
    assert (row["name"], row["config"]) == ("node.infer", "2 layers of 64 x 64, 16 samples")
    assert row["measured"] == infer_cycles([(64, 64), (64, 64)], 16, lanes=4)
    assert row["bound"] == 16 * 2 * 64 * 4
    assert not bench.exceeds_limit(row)
