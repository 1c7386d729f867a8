# amaranth: UnusedElaboratable=no
"""Test the table of couplings between sections of a node (hdl/config/couplings.py), and random valid nodes."""

import re

import pytest

from hdl.config import Memories, NodeConfig, Optimizer, Peer, RootReduce, SingleRing, Weights
from hdl.config.couplings import all_couplings
from hdl.features.compute.feature import Compute
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.grid.feature import Grid
from hdl.features.int16.feature import Int16Config
from hdl.features.microbatches.feature import Microbatches
from hdl.features.programs.feature import Programs
from hdl.features.quantization.feature import Quantization
from hdl.features.replay.feature import Replay
from hdl.features.settable_version.feature import SettableVersion
from hdl.features.slots.feature import JobSlots, Slots
from hdl.features.streaming.feature import Server, ServerConfig, Worker
from hdl.features.tenants.feature import Tenants
from hdl.features.throttles.feature import Throttles
from hdl.registry import feature
from tests.couplings import draw
from tests.couplings.__main__ import main
from tests.couplings.draw import INT16, circuit, listed, refused
from tests.refusals import refuses

COUPLINGS = all_couplings()
_QUORUM, _PROGRAMS = ComputeStub(quorum=True), Programs()
_CONTROL = {"link": Replay(), "programs": _PROGRAMS}
#: For each coupling, in order: the fields of a rejected node, and the change that the message suggests.
EXAMPLES = [
    ({"optimizer": Optimizer(lanes=8)}, {"lanes": 8}),
    ({"role": RootReduce(), "weights": Weights(codec="mx9")}, {"weights": Weights(master=True)}),
    ({"role": RootReduce(), "gradients": "raw"}, {"gradients": "zero_value"}),
    ({"role": Peer(interleaved=True), "link": Replay(ingress=2)}, {"link": {"ingress": 3}}),
    ({"memories": Memories(weight=1 << 21), "segment": 512}, {"topology": SingleRing(max_nodes=1)}),
    ({"role": Worker(), "link": Slots(), "programs": _PROGRAMS}, {"link": Replay()}),
    ({"link": Slots(), "topology": Grid(), "programs": _PROGRAMS}, {"topology": SingleRing()}),
    ({"link": JobSlots(), "topology": SingleRing(max_nodes=17), "programs": _PROGRAMS}, {"topology": SingleRing()}),
    ({"link": Slots()}, {"programs": _PROGRAMS}),
    ({"link": Slots(), "programs": _PROGRAMS, "features": (Tenants(),)}, {"features": ()}),
    ({"link": Slots(), "programs": _PROGRAMS, "features": (Throttles(),)}, {"link": Replay()}),
    ({"role": Worker(broadcast_formats=True), "lanes": 1}, {"role": Worker()}),
    ({"role": Worker(), "weights": Weights(master=True)}, {"weights": Weights()}),
    ({"compute": Compute(operands="mx9"), "optimizer": Optimizer(lanes=8), "lanes": 8}, {"compute": {"rows": 2}}),
    ({"compute": Compute(rows=1), "lanes": 1}, {"lanes": 2}),
    ({"compute": Compute(rows=4), "lanes": 2}, {"compute": {"rows": 2}}),
    ({"compute": Compute(operands="mx9"), "lanes": 8}, {"compute": {"operands": "bf16"}}),
    ({"role": RootReduce(), "stub": _QUORUM, **_CONTROL}, {"role": Peer()}),
    ({"stub": _QUORUM, "link": Replay(), "programs": Programs(move_queue=True)}, {"programs": {"move_queue": False}}),
    ({"stub": _QUORUM, "programs": _PROGRAMS}, {"link": Replay()}),
    ({"stub": _QUORUM, "link": JobSlots(), "programs": _PROGRAMS}, {"link": Slots()}),
    ({"stub": _QUORUM, "gradients": "mx9", **_CONTROL}, {"gradients": "raw"}),
    ({"stub": _QUORUM, "topology": SingleRing(max_nodes=17), **_CONTROL}, {"topology": Grid()}),
    ({"gradients": "sum32", "role": Peer(interleaved=True)}, {"role": Peer()}),
    ({"gradients": "sum16", "lanes": 1}, {"lanes": 2}),
    ({"gradients": "sum32", "weights": Weights(codec="table32")}, {"weights": Weights()}),
    ({"features": (Microbatches(),)}, {"gradients": "sum32"}),
    ({"features": (Microbatches(), Tenants()), "gradients": "sum32"}, {"features": (Microbatches(),)}),
    ({"memories": Memories(gradient=1 << 20)}, {"segment": 512}),
    ({"topology": SingleRing(max_nodes=17), **_CONTROL}, {"programs": None}),
]


def pairs():
    return [frozenset(coupling.sections) for coupling in COUPLINGS if len(coupling.sections) == 2]


@pytest.mark.parametrize(("coupling", "example"), list(zip(COUPLINGS, EXAMPLES, strict=True)),
                         ids=[" and ".join(coupling.sections) for coupling in COUPLINGS])
def test_message(coupling, example):
    """Each coupling rejects a node with a message that names its sections and suggests a change that fixes it."""
    values, change = example
    message = f"{coupling.rule}, since {coupling.reason}: {coupling.advice}"
    refuses(message, NodeConfig, **values)
    mended = {name: values[name].replace(**value) if isinstance(value, dict) else value
              for name, value in change.items()}
    NodeConfig(**{**values, **mended})
    for name in coupling.sections:
        assert re.search(rf"\b(?:{name}|role|links?|lanes|roles)\b", message), name


def test_texts():
    """Two rejection messages read exactly as expected."""
    with pytest.raises(ValueError, match=r"^links Slots and JobSlots need topology SingleRing, since nodes of "
                                         r"one ring share TIME: leave topology out, or take link Credits or Replay$"):
        NodeConfig(link=Slots(), programs=Programs(), topology=Grid())
    with pytest.raises(ValueError, match=r"^optimizer\.lanes must be at most lanes, since a step of the optimizer "
                                         r"takes elements of one memory row: lower optimizer\.lanes or raise lanes$"):
        NodeConfig(optimizer=Optimizer(lanes=8))


def test_servers_have_the_same_couplings():
    ServerConfig(programs=Programs(), link=Replay())
    for options in ({"role": Server(broadcast_formats=True), "lanes": 1}, {"optimizer": Optimizer(lanes=8)},
                    {"stub": ComputeStub(quorum=True)},
                    {"topology": SingleRing(max_nodes=255), "link": Replay(), "programs": Programs()}):
        with pytest.raises(ValueError, match="since"):
            ServerConfig(**options)


def test_no_other_pair_is_refused(capsys):
    """Only sections that are paired in the table of couplings have values that cannot be combined."""
    refused_pairs = {frozenset(values) for _, values in refused()}
    assert refused_pairs == listed()
    assert len(refused_pairs) <= 19
    assert len(COUPLINGS) - len(pairs()) == 2
    main(circuits=0)
    out = capsys.readouterr().out
    assert re.search(r"^\d+ pairs of values in 19 pairs of sections: Tenants and link, ", out, re.MULTILINE)
    assert "couplings.py" not in out


def test_draws_find_what_the_table_lacks(monkeypatch, capsys):
    from tests.couplings import __main__ as program

    lacking = tuple(coupling for coupling in COUPLINGS if "Tenants" not in coupling.sections)
    monkeypatch.setattr(draw, "all_couplings", lambda: lacking)
    with pytest.raises(program.typer.Exit):
        program.main(circuits=0)
    assert "Tenants and link: not in hdl/config/couplings.py" in capsys.readouterr().out
    slots = type(feature("slots"))
    monkeypatch.setattr(slots, "couplings", tuple(set(slots.couplings) & set(lacking)))
    assert frozenset({"Tenants", "link"}) not in {frozenset(values) for _, values in refused()}


def test_equal_hashes_are_equal_circuits():
    """Nodes with equal hashes have equal circuits, for all int16 nodes and one full node."""
    nodes = [Int16Config(memories=memories) for memories in INT16["memories"]]
    nodes += [Int16Config(masking=False), Int16Config(sparsify=False)]
    assert len({circuit(node) for node in nodes}) == len({node.hash for node in nodes}) == len(nodes)
    plain = NodeConfig(lanes=1, segment=32, memories=Memories(gradient=64, weight=64, state=32, planes=0),
                       masking=False, sparsify=False)
    same = plain.replace(features=(SettableVersion(), Quantization())).replace(features=(), programs=None)
    assert same.hash == plain.hash
    assert circuit(same) != circuit(plain.replace(weights=Weights(master=True)))
