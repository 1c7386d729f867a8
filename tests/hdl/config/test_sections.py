"""Tests of configuration sections: hdl/section.py, hdl/config/sections.py, hdl/config/ring.py, hdl/features."""

import dataclasses
import pickle
import re

import pytest

from hdl import config
from hdl.compression import registry
from hdl.config import Configuration, Credits, Memories, NodeConfig, Optimizer, Peer, SingleRing, Weights
from hdl.features.compute.feature import Compute
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.grid.feature import Grid
from hdl.features.int16.feature import Int16Config, Int16Memories
from hdl.features.programs.feature import Programs
from hdl.features.quantization.feature import Quantization
from hdl.features.replay.feature import Replay
from hdl.features.settable_version.feature import SettableVersion
from hdl.features.slots.feature import JobSlots, Slots
from hdl.features.streaming.feature import Server, ServerConfig, ServerMemories, Worker
from hdl.features.tenants.feature import Tenants
from hdl.registry import FEATURES, section, section_names
from hdl.section import Flag, Integer, OneOf, Section, option
from tests.refusals import refuses

#: All sections that have fields.
SECTIONS = [value for value in (*vars(config).values(), *(
                section(name) for entry in FEATURES.values() for names in entry.sections.values() for name in names))
            if isinstance(value, type) and dataclasses.is_dataclass(value) and dataclasses.fields(value)]

_WORDS = "a multiple of 32 between 32 and 16777216"
_FEATURES = f"a tuple of some of {', '.join(f'{name}()' for name in section_names('features'))}"
_WEIGHTS, _GRADIENTS = ", ".join(registry.WEIGHT_CODECS), ", ".join(registry.GRADIENT_CODECS)
#: Invalid values for every field of every section, each with the requirement that the error message must state.
WRONG = [
    (NodeConfig, "lanes", 3, "1, 2, 4 or 8"), (NodeConfig, "lanes", True, "1, 2, 4 or 8"),
    (NodeConfig, "segment", 96, "32, 64, 128, 256 or 512"), (NodeConfig, "segment", 1024, "32, 64, 128, 256 or 512"),
    (NodeConfig, "topology", 2, "SingleRing() or Grid()"), (NodeConfig, "memories", {"state": 32}, "Memories()"),
    (NodeConfig, "memories", Int16Memories(), "Memories()"), (NodeConfig, "memories", ServerMemories(), "Memories()"),
    (NodeConfig, "optimizer", 1, "Optimizer()"), (NodeConfig, "weights", "mx9", "Weights()"),
    (NodeConfig, "gradients", "mx7", f"one of {_GRADIENTS}"),
    (NodeConfig, "masking", 1, "True or False"), (NodeConfig, "sparsify", None, "True or False"),
    (NodeConfig, "link", "slots", "Credits(), Replay(), Slots() or JobSlots()"),
    (NodeConfig, "role", Server(), "Peer(), RootReduce() or Worker()"),
    (NodeConfig, "programs", True, "None or Programs()"), (NodeConfig, "compute", 4, "None or Compute()"),
    (NodeConfig, "stub", False, "None or ComputeStub()"),
    (NodeConfig, "features", Tenants(), _FEATURES),
    (NodeConfig, "features", (Tenants,), _FEATURES),
    (ServerConfig, "lanes", 16, "1, 2, 4 or 8"), (ServerConfig, "segment", 0, "32, 64, 128, 256 or 512"),
    (ServerConfig, "topology", None, "SingleRing() or Grid()"),
    (ServerConfig, "memories", Memories(), "ServerMemories()"), (ServerConfig, "optimizer", None, "Optimizer()"),
    (ServerConfig, "link", Slots(), "Credits() or Replay()"), (ServerConfig, "role", Worker(), "Server()"),
    (ServerConfig, "programs", 2, "None or Programs()"), (ServerConfig, "stub", 0, "None or ComputeStub()"),
    (ServerConfig, "features", (Quantization(),), "a tuple of some of SettableVersion(), Tenants(), Throttles()"),
    (Int16Config, "memories", Memories(), "Int16Memories()"), (Int16Config, "masking", 0, "True or False"),
    (Int16Config, "sparsify", "no", "True or False"),
    (SingleRing, "max_nodes", 256, "between 1 and 255"), (SingleRing, "max_nodes", 0, "between 1 and 255"),
    (Grid, "max_nodes", 17, "between 1 and 16"), (Credits, "ingress", 1, "at least 2"),
    (Replay, "ingress", 16, "between 2 and 15"), (Slots, "ingress", 1, "between 2 and 15"),
    (Slots, "messages", 1, "True or False"), (JobSlots, "ingress", 2.0, "between 2 and 15"),
    (Peer, "interleaved", 1, "True or False"), (Worker, "broadcast_formats", 1, "True or False"),
    (Server, "broadcast_formats", None, "True or False"),
    (Memories, "gradient", 100, _WORDS), (Memories, "weight", 0, _WORDS), (Memories, "state", "64", _WORDS),
    (Memories, "gradient", (1 << 24) + 32, _WORDS), (Memories, "planes", 3, "0, 1 or 2"),
    (ServerMemories, "gradient", 16, _WORDS), (ServerMemories, "weight", -32, _WORDS),
    (ServerMemories, "state", 33, _WORDS), (ServerMemories, "planes", None, "0, 1 or 2"),
    (ServerMemories, "far", 0, _WORDS),
    (Int16Memories, "gradient", 16416, "a multiple of 32 between 32 and 16384"),
    (Int16Memories, "weight", 32768, "a multiple of 32 between 32 and 16384"),
    (Optimizer, "lanes", 3, "1, 2, 4 or 8"), (Optimizer, "interval", 3, "1, 2, 4 or 8"),
    (Optimizer, "dsps", 3, "1, 2 or 4"), (Weights, "codec", "mx7", f"one of {_WEIGHTS}"),
    (Weights, "master", 1, "True or False"), (Programs, "depth", 0, "between 1 and 1024"),
    (Programs, "depth", 1025, "between 1 and 1024"), (Programs, "banks", 3, "1 or 2"),
    (Programs, "versions", 1, "True or False"), (Programs, "move_queue", 2, "True or False"),
    (Compute, "rows", 3, "1, 2 or 4"), (Compute, "rows", True, "1, 2 or 4"), (Compute, "activations", 16, _WORDS),
    (Compute, "operands", "fp8", "one of fp32, bf16, mx9, mx6, mx4, mxfp4_e2m1, mxfp4_e2m1_up, nvfp4"),
    (Compute, "codebook", 32, "0, 4, 8 or 16"), (Compute, "codebook", False, "0, 4, 8 or 16"),
    (Compute, "scale_mask", 1, "True or False"), (Compute, "sequences", 1, "True or False"),
    (Compute, "buffer_tags", 1, "True or False"),
    (Compute, "far", 33, "0, or a multiple of 32 up to 16777216"), (ComputeStub, "quorum", 1, "True or False"),
]


@pytest.mark.parametrize(("kind", "name", "value", "possible"), WRONG)
def test_wrong_values(kind, name, value, possible):
    message = f"^{kind.__name__}.{name} must be {re.escape(possible)}, not {re.escape(repr(value))}"
    with pytest.raises(ValueError, match=message):
        kind(**{name: value})


def test_every_field_has_a_wrong_value():
    assert {(kind, name) for kind, name, *_ in WRONG} == {
        (kind, field.name) for kind in SECTIONS for field in dataclasses.fields(kind)}


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Weights(codec="mx7"), ": did you mean mx9 or mx6 or mx4?"),
    (lambda: Weights(codec="mx9", master=True),
     "Weights.master must be left out with codec mx9, which always has master weights"),
    (lambda: ServerMemories(far=32736), "ServerMemories.far must hold weights and state, 32,768 words, not 32,736"),
    (lambda: NodeConfig(features=(Tenants(), Quantization(), Tenants())),
     "NodeConfig.features must have Tenants() once, not (Tenants(), Quantization(), Tenants())"),
])
def test_errors(make, message):
    with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
        make()


def test_codebooks_are_not_for_gradients():
    """Codecs with codebooks are not closed under addition; zero_value and sums of integers are not for weights."""
    having = [name for name, codec in registry.WEIGHT_CODECS.items() if codec.codebook_words]
    assert having == ["table32", "centroid16", "centroid64"]
    assert set(registry.GRADIENT_CODECS) == {"zero_value", "sum32", "sum16", *registry.WEIGHT_CODECS} - set(having)
    for name in having:
        message = ("^NodeConfig.gradients must take any number, since a sum of values in a codebook need not be in "
                   f"it: one of zero_value, raw, .*, not '{name}'$")
        with pytest.raises(ValueError, match=message):
            NodeConfig(gradients=name)


@pytest.mark.parametrize("kind", SECTIONS)
def test_sections_are_values(kind):
    """Sections are immutable and compare by their fields, even across processes; eval(repr()) restores them."""
    made = kind()
    assert made == kind()
    assert hash(made) == hash(kind())
    assert pickle.loads(pickle.dumps(made)) == made
    assert eval(repr(made), vars(config) | {kind.__name__: kind for kind in SECTIONS}) == made
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(kind)[0].name, None)
    with pytest.raises(TypeError):
        kind(1)


def test_text():
    """The repr of a node contains every field, whatever its value, except the fields of absent sections."""
    assert repr(Memories()) == "Memories(gradient=16384, weight=16384, state=8192, planes=2)"
    assert repr(Int16Config()) == ("Int16Config(memories=Int16Memories(gradient=16384, weight=16384), masking=True, "
                                   "sparsify=True)")
    text = repr(NodeConfig())
    assert not any(name in text for name in ("programs", "compute", "stub", "features"))
    assert repr(NodeConfig(programs=Programs())) == (
        text[:-1] + ", programs=Programs(depth=64, banks=1, versions=False, move_queue=False))")
    assert text != repr(NodeConfig(role=Peer(interleaved=True)))


def test_a_later_field_changes_nothing_while_it_is_off():
    """A new field that is off leaves a section's repr and hash unchanged; a new default changes both."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Plain(Section):
        rate: int = option(4, OneOf(1, 2, 4))

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(Section):
        rate: int = option(4, OneOf(1, 2, 4))
        burst: int = option(0, Integer(0), off=0)
        fast: bool = option(False, Flag(), off=False)

    assert repr(Later()).replace("Later", "Plain") == repr(Plain()) == "Plain(rate=4)"
    assert repr(Later(burst=3, fast=True)) == "Later(rate=4, burst=3, fast=True)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extended(Configuration):
    """An int16 node configuration with one more field."""

    memories: Int16Memories = option(Int16Memories(), Int16Config.__dataclass_fields__["memories"].metadata["domain"])
    masking: bool = option(True, Flag())
    sparsify: bool = option(True, Flag())
    mirrored: bool = option(False, Flag(), off=False)


Extended.__name__ = "Int16Config"


def test_a_later_option_keeps_the_hash():
    assert repr(Extended()) == repr(Int16Config())
    assert Extended().hash == Int16Config().hash != Extended(mirrored=True).hash


def test_replace():
    node = NodeConfig(compute=Compute(rows=2, far=64))
    assert node.replace(lanes=8, memories={"planes": 0}, programs={"depth": 3}, link=Replay()) == NodeConfig(
        lanes=8, memories=Memories(planes=0), programs=Programs(depth=3), link=Replay(),
        compute=Compute(rows=2, far=64))
    assert node.replace(compute={"rows": 1}).compute == Compute(rows=1, far=64)
    assert node.replace(programs={}, compute=None) == NodeConfig(programs=Programs())
    assert node.replace() == node
    with pytest.raises(TypeError):
        node.replace(width=3)
    refuses("Memories.planes must be 0, 1 or 2, not 3", node.replace, memories={"planes": 3})


def test_features_have_one_order():
    features = (Tenants(), SettableVersion())
    assert NodeConfig(features=features) == NodeConfig(features=features[::-1])
    assert NodeConfig(features=features).features == (SettableVersion(), Tenants())
    node = NodeConfig(features=features)
    assert node.has("tenants")
    assert not node.has("quantization")
