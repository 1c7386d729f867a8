import numpy as np
import pytest

from sim.golden import ring
from sim.golden.codecs import CODECS
from sim.golden.features.programs.program_nodes import ProgramNodes
from sim.golden.nodes import Placed
from tests.refusals import refuses

LENGTH, HALF = 200, 256
SETTINGS = ring.settings(1, learning_rate=0.5, gradient_scale=0.25, first_decay=0.9, first_gain=1)


def same(operation, nodes, *, collective=True, waits=(), **fields):
    return Placed(operation, [fields] * nodes, collective, waits)


def step(nodes, *, wait=True):
    """One-pass program: a command stores gradients and an update follows, with or without waiting for it."""
    return [[same("COMPUTE", nodes, collective=False, length=LENGTH, state_base=HALF, waits=((1, 1),))],
            [same("LATCH", nodes, collective=False, waits=((0, 0),)),
             same("FUSED_UPDATE", nodes, length=LENGTH, waits=((int(wait), 0),))]]


def golden(nodes, seed, **options):
    generator = np.random.default_rng(seed)
    model = ProgramNodes(nodes, gradient_words=2 * HALF, planes=1,
                  weights=ring.bits(generator.standard_normal(LENGTH)), **options)
    model.settings = SETTINGS
    model.stage(ring.bits(generator.standard_normal((nodes, LENGTH))), HALF)
    return model


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
@pytest.mark.parametrize("codec", ["raw", "mx9"])
def test_an_update_is_the_ring_s(nodes, codec):
    """Updates with state and master weights divided among owners equal updates of whole vectors."""
    weights = ring.bits(np.random.default_rng(nodes).standard_normal(LENGTH))
    model = golden(nodes, nodes, weight_codec=CODECS[codec])
    master, state = weights, [np.zeros(LENGTH, dtype=np.uint32)]
    model.run(step(nodes), passes=3)
    for _ in range(3):
        update = ring.fused_update(model.gradients[:, HALF:HALF + LENGTH], master, state, SETTINGS,
                                   weight_codec=CODECS[codec])
        master, state = update.master, update.state
    assert (model.weights == update.weights).all()
    for rank, index in enumerate(model.owned(0, LENGTH, 0)):
        assert np.array_equal(model.masters[rank, :len(index)], master[index])
        assert np.array_equal(model.state[0][rank, :len(index)], state[0][index])


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_strict_is_an_update(nodes):
    """FUSED_UPDATE equals REDUCE_SCATTER, updates of each node's own blocks, and ALL_GATHER."""
    own = [list(range((rank + 1) % nodes, 7, nodes)) for rank in range(nodes)]
    lengths = [max(0, min(32 * len(groups), 32 * len(groups) - 32 * 7 + LENGTH if 6 in groups else 32 * len(groups)))
               for groups in own]
    update = Placed("FUSED_UPDATE", [
        {"gradient_base": 32 * groups[0], "weight_base": 32 * groups[0], "length": length, "stride": nodes, "size": 1}
        for groups, length in zip(own, lengths, strict=True)])
    strict = [[same("COMPUTE", nodes, collective=False, length=LENGTH, state_base=HALF, waits=((4, 1),))],
              [same("LATCH", nodes, collective=False, waits=((0, 0),)),
               same("REDUCE_SCATTER", nodes, length=LENGTH, waits=((1, 0),)), update,
               same("ALL_GATHER", nodes, length=LENGTH)]]
    split, whole = golden(nodes, 7), golden(nodes, 7)
    split.run(strict, passes=2)
    whole.run(step(nodes), passes=2)
    for name, array in split.arrays().items():
        if name != "masters":
            assert np.array_equal(array, whole.arrays()[name]), name


def test_orders():
    """All execution orders give the same weights, unless the update does not wait for the gradients."""
    def weights(seed, *, wait):
        model = golden(3, 11)
        model.run(step(3, wait=wait), passes=3, seed=seed)
        return model.weights.tobytes()

    assert len({weights(seed, wait=True) for seed in range(20)}) == 1
    assert len({weights(seed, wait=False) for seed in range(20)}) > 1


def test_settings_are_those_of_the_latch():
    """Settings written after LATCH do not affect the current pass."""
    model = golden(2, 13)
    queues = step(2)
    model.run(queues)
    expected = model.arrays()
    again = golden(2, 13)
    again.run([[], queues[1][:1]])
    again.settings = ring.settings(1, learning_rate=7, gradient_scale=1)
    again.run([queues[0], queues[1][1:]])
    assert all(np.array_equal(array, expected[name]) for name, array in again.arrays().items())


def test_before_each_pass():
    numbers = []
    golden(2, 17).run(step(2), passes=4, before=numbers.append)
    assert numbers == [0, 1, 2, 3]


@pytest.mark.parametrize("codec", ["zero_value", "mx9"])
def test_sums_and_weights(codec):
    """Collectives are correct with residuals, block offsets and alternating weights."""
    nodes, shape = 3, {"length": LENGTH, "block_offset": 2}
    model = golden(nodes, 23, gradient_codec=CODECS[codec])
    generator = np.random.default_rng(29)
    model.gradients[:, :HALF] = ring.bits(generator.standard_normal((nodes, HALF)))
    model.weights = ring.bits(generator.standard_normal((nodes, 2 * HALF)))
    model.weight_stride = HALF
    gradients, weights, residuals = model.gradients.copy(), model.weights.copy(), np.zeros((nodes, LENGTH), np.uint32)
    model.run([[same("QUIESCE", nodes, collective=False)],
               [same("ALL_REDUCE", nodes, **shape), same("REDUCE_SCATTER", nodes, gradient_base=HALF, **shape),
                same("ALL_GATHER", nodes, alternate=1, **shape),
                same("BROADCAST", nodes, length=32, weight_base=32, root=2)]], passes=2, parity=1)
    options = {"gradient_codec": CODECS[codec], "block_offset": 2}
    expected = gradients[:, :LENGTH].copy()
    for _ in range(2):
        expected[:], _ = ring.all_reduce(expected, residuals=residuals, **options)
    assert (model.gradients[:, :LENGTH] == expected).all()
    assert (model.residuals[:, :LENGTH] == residuals).all()
    expected, residuals = gradients[:, HALF:HALF + LENGTH], np.zeros_like(residuals)
    for _ in range(2):
        expected, _ = ring.reduce_scatter(expected, residuals=residuals, **options)
    assert (model.gradients[:, HALF:HALF + LENGTH] == expected).all()
    assert (model.residuals[:, HALF:HALF + LENGTH] == residuals).all()
    gathered = ring.all_gather(weights[:, HALF:HALF + LENGTH], block_offset=2)[0]
    assert (model.weights[:, HALF:HALF + LENGTH] == gathered).all()
    weights[:, 32:64] = weights[2, 32:64]
    assert (model.weights[:, :LENGTH] == ring.all_gather(weights[:, :LENGTH], block_offset=2)[0]).all()


def test_errors():
    model = golden(2, 19)
    refuses("Operation must be one of a schedule, not 'MASK'", model.run, [[same("MASK", 2, collective=False)], []])
    refuses("Settings must be latched before an update", model.run, [[], [same("FUSED_UPDATE", 2, length=32)]])
    refuses("Commands must not wait for ever, not with [[0, 0], [0, 0]] of them done", model.run,
            [[same("COMPUTE", 2, waits=((1, 0),))], [same("LATCH", 2, waits=((1, 0),))]])
