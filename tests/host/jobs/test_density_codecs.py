"""Density with each gradient codec. A codec is rejected if zeros do not make its packets shorter."""

import re

import numpy as np
import pytest

from hdl.compression.registry import GRADIENT_CODECS, RAW, ZERO_VALUE
from host.jobs import simulate as module
from host.jobs.simulate import node_for, simulate
from host.training.sparsifier import check_zeros
from sim.golden.codecs import CODECS

REFUSED = "Codec of gradients with a density must be zero_value, not {}: zeros do not make its packets shorter; leave"


@pytest.mark.parametrize("name", GRADIENT_CODECS)
def test_pairs(name, run, tmp_path, monkeypatch):
    """The library and both commands reject a density that would have no effect, before anything is built."""
    values = np.random.default_rng(1).standard_normal(1024).astype(np.float32)
    if CODECS[name].agreed:  # this codec encodes integers
        values = np.rint(1000 * values).astype(np.int32)
    full, sparse = (len(CODECS[name].encode(part.view(np.uint32))) for part in (values, values * (values > 1)))
    assert GRADIENT_CODECS[name].drops_zeros == (sparse < full)
    if sparse < full:
        check_zeros(name)
        return
    assert sparse == full
    monkeypatch.setattr(module, "open_session", None)
    text = re.escape(REFUSED.format(name))
    with pytest.raises(ValueError, match=f"^{text}"), simulate(nodes=4, length=100, gradients=name, density=0.1):
        pass
    with pytest.raises(ValueError, match=f"^{text}"), simulate(nodes=4, length=100, density=0.1, node=node_for(
            100, nodes=4, gradients=name)):
        pass
    coupled = f"Option --density is for --gradients zero_value, not {name} (zeros do not make "
    for command, refused in ((("launch", "--output", tmp_path), REFUSED.format(name)),
                             (("train", "--output", tmp_path, "--epochs", 1), coupled)):
        pytest.importorskip("torch")
        code, _, errors = run(*command, "--gradients", name, "--density", 0.1,
                              *([__file__] if command[0] == "launch" else []))
        assert code == 1
        assert errors.startswith(f"error: {refused}")
    assert not list(tmp_path.iterdir())


def test_default(run, tmp_path):
    """By default, gradients are raw, or zero_value with a density; a codec that is named explicitly is kept."""
    assert node_for(100, nodes=4).gradients == RAW
    assert node_for(100, nodes=4, density=0.5).gradients == ZERO_VALUE
    for name in GRADIENT_CODECS:
        assert node_for(100, nodes=4, gradients=name).gradients == name
    with pytest.raises(ValueError, match=r"^Codecs must be left out with a node, which has its own"), \
            simulate(length=100, node=node_for(100, nodes=4), gradients=RAW):
        pass
