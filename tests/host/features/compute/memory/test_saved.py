"""Chains of activation maps derived from programs, and the cost of swapping and recomputing them."""

import pytest

from host.features.compute.memory.chain import decide, layers_chain
from host.features.compute.text_steps import text_chain, text_program


def test_text():
    """The text model's maps have the expected sources; the chain's cycles are the sum over all steps."""
    chain = text_chain()
    assert [(entry.name, entry.words, entry.sources, entry.needs, entry.reads) for entry in chain.maps] == [
        ("normal norm_0", 512, (), (), ()), ("parts 0", 1536, (0,), (0,), ()), ("weights 0", 512, (1,), (1,), (1,)),
        ("heads 0", 512, (1, 2), (1, 2), ()), ("normal feed_norm_0", 512, (3,), (3,), ()),
        ("rise_0", 1536, (4,), (4,), ()), ("normal norm", 512, (5,), (3, 5), ())]
    steps = text_program(scaled_again=True).steps
    assert chain.cycles == sum(step.cycles for step in steps)
    # To recompute this map from the attention heads, two residual sums and a product are needed that its forward pass
    # does not contain.
    assert chain.maps[6].multiplications == 16 * 32 * 96 + 16 * 32 * 32
    assert chain.again(6) > chain.maps[6].forward
    assert chain.again(0) < chain.maps[0].forward  # because its rows' deviations have been kept


@pytest.mark.parametrize(("chain", "share", "rate", "factors"), [
    (layers_chain(9, width=64, examples=32), 0.5, 1 / 8, (1.105, 1.182, 1.069)),
    (layers_chain(9, width=64, examples=32), 0.5, 1 / 2, (1.0, 1.182, 1.0)),
    (text_chain(), 0.6, 1 / 4, (1.0, 1.075, 1.0)),
    (text_chain(), 0.75, 1 / 8, (1.038, 1.051, 1.012)),
], ids=["layers", "layers, fast", "text", "text, slow"])
def test_factors(chain, share, rate, factors):
    """All plans fit in the budget. Compared with a step that keeps all maps, their cycles increase by the known
    factors."""
    budget = int(share * chain.words)
    plans = [decide(chain, budget=budget, rate=rate, kind=kind) for kind in ("swap", "recompute", "mixed")]
    assert tuple(round(plan.run.cycles / chain.cycles, 3) for plan in plans) == factors
    assert all(plan.run.peak <= budget for plan in plans)
