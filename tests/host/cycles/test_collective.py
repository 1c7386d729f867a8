"""Costs of collectives match the golden model, and modelled cycles match simulated rings."""

import itertools
import math
import statistics
import time

import numpy as np
import pytest

from hdl.config import NodeConfig, Weights
from host.cycles import collective, estimate
from host.cycles.costs import Costs, CountedCosts, Format, Zeros
from host.cycles.estimate import Collective
from host.cycles.timing import COMMAND, HOP, timing_of
from host.labs.predict import points
from sim.golden import optimizer
from sim.golden import ring as golden
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS
from tests.host.rings import CONFIGS, open_nodes
from tests.present import needs

needs("bf16", "int16", "mx", "reproducible", "table")

#: Names of the gradient codecs for which the model predicts cycles, as listed in an error message.
INCLUDED = ", ".join(name for name, codec in GRADIENT_CODECS.items() if not codec.agreed)

#: Part of an error message: the reason for which codecs that sum integers are not predicted.
REASON = r"\(packets also contain the exponents of other segments\): choose another one, such as raw$"

POINTS = points.load()


def traffic_of(kind, form, gradients, *, segment):
    """Run a collective on the golden model and return its traffic."""
    bits = golden.bits(gradients)
    options = {"gradient_codec": GRADIENT_CODECS[form.gradients], "residuals": np.zeros_like(bits),
               "segment": segment, "lanes": 4}
    if kind is Collective.ALL_REDUCE:
        return golden.all_reduce(bits, **options)[1]
    rule = golden.settings(optimizer.Rule.SGD, gradient_scale=1.0, learning_rate=0.1)
    return golden.fused_update(bits, bits[0], [], rule, weight_codec=WEIGHT_CODECS[form.weights], **options).traffic


def words_of(costs):
    """Return two arrays with the number of words that each rank sends at each hop: one for scatter, one for
    gather."""
    nodes = costs.nodes
    scatter, gather = (np.zeros((nodes - 1, nodes), np.int64) for _ in range(2))
    for number, hop in itertools.product(range(costs.segments), range(nodes - 1)):
        scatter[hop] += costs.scatter(hop, number, -hop) + golden.PACKET_OVERHEAD
        gather[hop] += costs.gather(number, 1 - hop) + golden.PACKET_OVERHEAD
    return scatter, gather


@pytest.mark.parametrize("kind", [Collective.ALL_REDUCE, Collective.FUSED_UPDATE])
@pytest.mark.parametrize("form", [Format(), Format(gradients="mx9", weights="mx9"),
                                  Format(gradients="bf16", weights="mxfp4_e2m1"), Format(density=0.2)])
@pytest.mark.parametrize(("nodes", "length"), [(2, 33), (3, 32), (5, 1000), (4, 3001)])
def test_costs_are_the_golden_model_s(kind, form, nodes, length):
    generator = np.random.default_rng(nodes * length)
    gradients = (generator.random((nodes, length)) + 1).astype(np.float32)
    gradients[generator.random(gradients.shape) >= form.density] = 0
    traffic, sums = traffic_of(kind, form, gradients, segment=64), kind is Collective.ALL_REDUCE
    costs = [CountedCosts(form, gradients, segment=64, sums=sums)]
    if form.density == 1:
        costs.append(Costs(form, length=length, nodes=nodes, segment=64, sums=sums))
    for model_costs in costs:
        scatter, gather = words_of(model_costs)
        assert (scatter == traffic.scatter_words).all()
        assert (gather == traffic.gather_words).all()


def test_zeros_of_sums():
    together, apart = (Format(density=0.1, zeros=zeros) for zeros in (Zeros.TOGETHER, Zeros.APART))
    assert [together.after(count) for count in (0, 1, 5)] == [0, 0.1, 0.1]
    assert [round(apart.after(count), 4) for count in (0, 1, 2)] == [0, 0.1, 0.19]


def test_zeros_of_short_blocks():
    """In short blocks, the number of nonzero elements has a binomial distribution, which is the same at every hop.
    For a single block, the model uses the median number."""
    costs = Costs(Format(density=0.1), length=32 * 200, nodes=200, segment=256, sums=True)
    zeros = costs.positions(0, 0, 0)
    assert abs(zeros.mean() - 3.2) < 0.05
    assert abs(zeros.std() - math.sqrt(32 * 0.1 * 0.9)) < 0.1
    assert (zeros.min(), zeros.max()) == (0, 9)
    assert (costs.positions(5, 0, -7) == np.roll(zeros, 7)).all()
    lone = Costs(Format(density=0.1), length=32, nodes=2, segment=256, sums=True)
    assert lone.positions(0, 0, 0).tolist() == [3, 0]
    whole = Costs(Format(density=0.1), length=256 * 200, nodes=200, segment=256, sums=True)
    assert set(whole.positions(0, 0, 0)) == {26}


@pytest.mark.parametrize("form", [Format(), Format(density=0.1, zeros=Zeros.APART),
                                  Format(gradients="mx9", weights="mx9")])
@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_a_skipped_period_changes_nothing(form, nodes, monkeypatch):
    timing = timing_of(NodeConfig(weights=Weights(codec=form.weights), gradients=form.gradients))

    def all_kinds():
        return [collective.collective_cycles(kind, form, timing, length=nodes * 256 * 90 + 77, nodes=nodes,
                                             latency=latency)
                for kind in Collective for latency in (3, 300)]

    skipped = all_kinds()
    monkeypatch.setattr(collective._Periods, "look", lambda *arguments: None)
    assert skipped == all_kinds()


def test_points_are_apart():
    asked = {name: {(sample.kind, sample.form, sample.nodes, sample.length, sample.latency) for sample in points}
             for name, points in POINTS.items()}
    assert not asked["fitted"] & asked["chosen"]
    assert len(asked["chosen"]) == len(POINTS["chosen"]) >= 500
    assert {point.nodes for point in POINTS["large"]} == {64, 255}


def test_errors_where_zeros_are_counted():
    compared = points.compare(POINTS["chosen"], counted=True)
    assert [comparison.line for comparison in compared if abs(comparison.error) > points.WORST] == []
    assert statistics.mean(abs(comparison.error) for comparison in compared) <= 0.01
    assert all(comparison.words == comparison.point.words for comparison in compared)


@pytest.mark.parametrize("counted", [False, True])
def test_errors_on_large_rings(counted):
    """The model is accurate for rings of 64 and 255 nodes, although no constant was fitted to them."""
    compared = points.compare(POINTS["large"], counted=counted)
    assert [comparison.line for comparison in compared if abs(comparison.error) > points.WORST] == []
    assert statistics.mean(abs(comparison.error) for comparison in compared) <= 0.02
    exact = [comparison for comparison in compared if counted or "%" not in comparison.point.form]
    assert exact
    assert all(comparison.words == comparison.point.words for comparison in exact)


def test_errors_where_zeros_are_expected():
    """The model's errors are small, except at length 32, where a vector may be all zero or twice as dense as planned.
    """
    compared = points.compare(POINTS["chosen"])
    assert statistics.mean(abs(comparison.error) for comparison in compared) <= 0.01
    assert max(abs(comparison.error) for comparison in compared) <= 0.1
    off = [comparison.point.length for comparison in compared if abs(comparison.error) > points.WORST]
    assert set(off) <= {32}
    assert len(off) <= 2


def test_constants_fit_best(monkeypatch):
    errors = {}
    for hop, command in itertools.product(range(HOP - 2, HOP + 3), range(COMMAND - 4, COMMAND + 5)):
        monkeypatch.setattr(collective, "HOP", hop)
        monkeypatch.setattr(collective, "COMMAND", command)
        errors[hop, command] = sum(comparison.error ** 2 for comparison in points.compare(POINTS["fitted"]))
    assert min(errors, key=errors.get) == (HOP, COMMAND)


@pytest.mark.parametrize("kind", list(estimate._MEASURED))
def test_table_of_the_default_node(kind):
    """Modelled cycles are close to the measured cycles tabulated in :mod:`host.cycles.estimate`."""
    timing, errors = timing_of(NodeConfig()), {}
    for nodes, cycles in estimate._MEASURED[kind].items():
        for length, measured in zip(estimate._LENGTHS, cycles, strict=True):
            estimated = timing.alone(length=length) if nodes == 1 else collective.collective_cycles(
                kind, Format(), timing, length=length, nodes=nodes, latency=16).cycles
            errors[nodes, length] = abs(estimated / measured - 1)
    assert max(errors.values()) <= 0.05, max(errors, key=errors.get)
    assert statistics.mean(errors.values()) <= 0.01


@pytest.mark.parametrize(("name", "nodes", "latency"), [("default", 3, 1), ("default", 4, 90), ("mx9", 2, 16)])
def test_simulated_ring(name, nodes, latency):
    config = CONFIGS[name]
    form = Format(gradients=config.gradients, weights=config.weights.codec)
    generator = np.random.default_rng(nodes)
    with open_nodes(nodes, config=config, latency=latency, host_port=False) as (ring, _):
        for length in (60, 2000):
            for kind in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
                ring.memory.write_gradients(list(generator.standard_normal((nodes, length)).astype(np.float32)))
                cycles = getattr(ring.collectives, kind.name.lower())(length).cycles
                predicted = collective.collective_cycles(kind, form, timing_of(config), length=length, nodes=nodes,
                                                        latency=latency).cycles
                most = 0.06 if kind is Collective.REDUCE_SCATTER and config.has_residual else 0.05
                assert abs(predicted / cycles - 1) <= most, f"{kind.name}, {length}: {cycles}, predicted {predicted}"


def test_a_thousand_nodes():
    begun = time.process_time()
    prediction = collective.collective_cycles(Collective.FUSED_UPDATE, Format(), timing_of(NodeConfig()),
                                              length=25_000_000, nodes=1000,
                           latency=256)
    assert time.process_time() - begun <= 10
    assert prediction.cycles > prediction.words > 2 * 25_000_000 * 0.999


@pytest.mark.parametrize(("options", "message"), [
    ({"nodes": 1}, "Ring must have at least 2 nodes, not 1"),
    ({"length": 0}, "Vector must have at least one element, not 0"),
    ({"latency": 0}, "Link latency must be at least 1 cycle, not 0"),
])
def test_refused(options, message):
    arguments = {"length": 32, "nodes": 2, "latency": 1, **options}
    with pytest.raises(ValueError, match=message):
        collective.collective_cycles(Collective.ALL_REDUCE, Format(), timing_of(NodeConfig()), **arguments)


@pytest.mark.parametrize(("options", "message"), [
    ({"gradients": "table32"}, "Codec of gradients must be one of .*, not 'table32'"),
    ({"gradients": "mx5"}, f"^Codec of gradients must be one of {INCLUDED}, not 'mx5'"),
    *(({"gradients": name}, f"^Codec of gradients must not sum integers to be predicted, as {name} does {REASON}")
      for name in ("sum32", "sum16")),
    ({"weights": "mx5"}, "Codec of weights must be one of .*, not 'mx5'"),
    ({"density": 1.5}, "Density must be from 0 to 1, not 1.5"),
])
def test_refused_formats(options, message):
    with pytest.raises(ValueError, match=message):
        Format(**options)


@pytest.mark.parametrize(("config", "message"), [
    (NodeConfig(gradients="sum32"),
     f"^Codec of gradients must not sum integers to be predicted, as sum32 does {REASON}"),
    (CONFIGS["int16"], "Node must have collectives to be predicted, not be an int16 node"),
    (NodeConfig(
        weights=Weights(codec="table32")), "Codec of weights must have no codebook to be predicted, not be table32"),
])
def test_refused_nodes(config, message):
    with pytest.raises(ValueError, match=message):
        timing_of(config)
