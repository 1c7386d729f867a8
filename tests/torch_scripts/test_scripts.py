"""Ten random scripts on rings of nodes that other tests build too."""

import pytest

pytest.importorskip("torch")

from host.jobs.simulate import simulate
from host.pytorch import jobs
from host.pytorch.jobs import Options
from tests.host.rings import CONFIGS, JOBS
from tests.torch_scripts.__main__ import play

SEED = 20260


@pytest.mark.parametrize(("options", "scripts"), [(Options(nodes=2, gradients="mx9"), 6), (Options(nodes=4), 4)])
def test_scripts(tmp_path, monkeypatch, options, scripts):
    """Weights and sums are bit-identical to gloo's, unless all ranks reject the same action."""

    def simulated(*, gradients, weights, optimizer, **rest):
        # Only sums may use the mx9 nodes of other tests, since these nodes would also round weights.
        node = CONFIGS["mx9"] if gradients == "mx9" and optimizer is None else JOBS
        return simulate(node=node, optimizer=optimizer, **rest)

    monkeypatch.setattr(jobs, "simulate", simulated)
    ends = play(scripts, options=options, seed=SEED, folder=tmp_path)
    assert len(ends) == scripts
    assert not {number: end for number, end in ends.items() if not end.startswith(("equal", "refused"))}
