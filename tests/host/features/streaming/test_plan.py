"""Tests of the memory plans for layer streaming: host/features/streaming/plan.py."""

import dataclasses

import pytest

from host.features.compute.memory.checker import overlaps
from host.features.streaming.plan import (
    StreamingPlan,
    Worker,
    check_server,
    cut,
    largest_microbatch,
    make_streaming_plan,
)
from sim.golden.features.streaming.streaming import Unit, units_of
from tests.refusals import refuses

#: A worker with memories for layers of 64 x 64 weights.
WORKER = Worker(weight_words=8320, gradient_words=8320, activation_words=8192, far_words=1 << 16)


def plan(*, layers=4, count=3, microbatch=8, worker=WORKER):
    return make_streaming_plan([64] * layers + [10], worker=worker, count=count, microbatch=microbatch)


@pytest.mark.parametrize("layers", [4, 8, 16])
def test_words_on_the_chip_do_not_depend_on_the_depth(layers):
    assert plan(layers=layers).peak == 20_224 == 4 * 4_160 + 7 * 512
    assert plan(layers=layers).end == plan(layers=4).end <= 8192


def test_windows_and_buffers():
    relay = plan()
    assert relay.window == 4160
    assert relay.distance == 3 * 512
    assert relay.again.length == 512
    assert not list(overlaps(relay.profile, relay.bank.places))
    assert relay.windows == ([0, 1, 0, 1], [0, 1, 0, 1])
    assert len(relay.line) < 118


@pytest.mark.parametrize(("layers", "keys"), [(4, 11), (8, 11), (16, 11)])
def test_inner_layers_share_lists(layers, keys):
    """The first and the last layer have lists of their own; inner layers share one list per window."""
    relay = plan(layers=layers)
    assert len(relay.keys) == keys
    inner = {relay.key(number, backward=True) for number in range(1, layers - 1)}
    assert len(inner) == 2


def test_far_memory():
    relay = plan()
    assert relay.far("x", 0, 1).length == 512
    regions = [relay.far("x", item, layer) for layer in (1, 2, 3, 4) for item in range(3)]
    regions += [relay.far(name, item) for name in ("upstream", "labels", "loss") for item in range(3)]
    assert not any(item.meets(other) for index, item in enumerate(regions) for other in regions[:index])
    assert relay.far_words == max(region.base + region.length for region in regions) == 5 * 3 * 512 + 6 * 32


def test_largest_microbatch():
    relay = make_streaming_plan([64] * 4 + [10], worker=WORKER, count=3)
    assert relay.microbatch == 16
    refuses("Microbatches of 17 and lists must take at most the 8,192 elements of a worker's activation memory, not "
            "8,448", plan, microbatch=17)
    assert make_streaming_plan([64] * 4 + [10], worker=WORKER, count=3, most=8).microbatch == 8
    narrow = dataclasses.replace(WORKER, far_words=8192)
    assert make_streaming_plan([64] * 4 + [10], worker=narrow, count=3).microbatch == 8


def test_digest_is_of_the_program():
    base = plan()
    changed = [dataclasses.replace(base, count=2), dataclasses.replace(base, microbatch=4), plan(layers=5),
               dataclasses.replace(base, units=(dataclasses.replace(base.units[0], format="mx9"),
                                                *base.units[1:]))]
    assert len({variant.digest for variant in (base, *changed)}) == 5
    assert plan().digest == base.digest


@pytest.mark.parametrize(("window", "parts"), [(4160, [64]), (4159, [32, 32]), (2080, [32, 32]), (2079, [24, 24, 16]),
                                           (672, [8] * 8)])
def test_cut(window, parts):
    units = cut([64, 64, 10], window=window // 32 * 32, lanes=4)
    assert [unit.outputs for unit in units if unit.layer == 1] == parts
    assert [unit.first for unit in units if unit.layer == 1] == [sum(parts[:n]) for n in range(len(parts))]
    assert units[-1] == Unit(2, 64, 10)
    assert all(unit.length <= window for unit in units)


def test_parts_share_no_window_with_the_execution_before():
    relay = make_streaming_plan([64, 64, 64, 10], worker=dataclasses.replace(WORKER, weight_words=4160), count=2,
                            microbatch=8)
    assert [unit.first for unit in relay.units] == [0, 32, 0, 32, 0]
    assert relay.windows[0] == [0, 1, 0, 1, 0]
    assert relay.widths == {0: 64, 1: 64, 2: 64, 3: 10}
    assert relay.windows[1] == [1, 0, 1, 0, 0]
    assert relay.peak == 4 * 2080 + relay.lists


def test_refusals():
    refuses("Layer 1 must be of parts of 4 outputs that fit into a window of 256 words, not take 288 for one", cut,
            [64, 8, 10], window=256, lanes=4)
    refuses("Last layer must fit into a window of 640 words, since its loss needs all outputs, not take 672", cut,
            [64, 64, 10], window=640, lanes=4)
    refuses("Inputs and widths of hidden layers must be multiples of the 4 lanes of workers, not 30", cut,
            [64, 30, 10], window=4160, lanes=4)
    refuses("Outputs of the last layer must be at most 64 on workers, not 65", cut, [64, 65], window=8320, lanes=4)
    refuses("Server must have a far memory of 14,496 words for weights and state, not 0", check_server,
            units_of([64, 64, 10]), planes=2, far_words=0)
    check_server(units_of([64, 64, 10]), planes=2, far_words=14_496)
    with pytest.raises(ValueError, match=r"^Resident units must be at most the 3 windows of a worker, not 5$"):
        make_streaming_plan([16] * 6, worker=dataclasses.replace(WORKER, windows=3), count=1)
    refuses("Windows of a worker must be 2 or more, not 1", dataclasses.replace, WORKER, windows=1)
    refuses("Activations of 3 microbatches of 8 must take at most the 4,096 words of a worker's far memory, not "
            "7,872", plan, worker=dataclasses.replace(WORKER, far_words=4096))
    refuses("Microbatches of 1 and lists must take at most the 256 elements of a worker's activation memory, not 768",
            make_streaming_plan, [64, 64, 10], worker=dataclasses.replace(WORKER, activation_words=256), count=1)
    refuses("Microbatches must be 1 or more, not 0", plan, count=0)
    refuses("Microbatch must be of 1 to 4,095 examples, not 0", plan, microbatch=0)
    refuses("Examples must be 1 or more, not 0", largest_microbatch, units_of([64, 10]), worker=WORKER, most=0)
    assert isinstance(plan(), StreamingPlan)
