"""Draw random sections of node configurations, to find forbidden value pairs and compare circuits.

The search for forbidden pairs does not use the table of couplings: a pair counts as forbidden if all tried
configurations that contain it are rejected.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

from amaranth.back import rtlil

from hdl.board import node_of
from hdl.config import Configuration, Credits, Memories, NodeConfig, Optimizer, Peer, RootReduce, SingleRing, Weights
from hdl.config.couplings import all_couplings
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
from hdl.features.throttles.feature import Throttles
from tests.present import needs

# These features are needed by section values below; the other features are imported above.
needs("bf16", "block_operands", "mx", "nvfp4", "quorum", "reproducible", "table")

#: Section types for a configuration's ``features``, keyed by name. Microbatches is left out: it needs a non-default
#: kind of gradients, so it would seem to conflict with every section that conflicts with such gradients.
FEATURES = {kind.__name__: kind for kind in (Quantization, SettableVersion, Tenants, Throttles)}

_FEATURE_VALUES: dict[str, tuple[Any, ...]] = {name: (None, kind()) for name, kind in FEATURES.items()}
_RING: dict[str, tuple[Any, ...]] = {
    "lanes": (1, 2, 4, 8), "segment": (32, 64, 128, 256, 512),
    "topology": (SingleRing(), *(SingleRing(max_nodes=nodes) for nodes in (1, 2, 17, 255)), Grid(),
                 Grid(max_nodes=1)),
    "optimizer": tuple(Optimizer(lanes=lanes, interval=interval, dsps=dsps)
                       for lanes, interval, dsps in itertools.product((1, 2, 4, 8), (1, 8), (1, 4))),
    "programs": (None, Programs(), Programs(depth=1), Programs(banks=2), Programs(versions=True),
                 Programs(move_queue=True), Programs(depth=1024, banks=2, versions=True, move_queue=True)),
    "stub": (None, ComputeStub(), ComputeStub(quorum=True)),
}
_CREDITS: tuple[Any, ...] = (Credits(), Credits(ingress=2), Credits(ingress=100), Replay(), Replay(ingress=2))

#: Values to try for each section of a node, server or int16 node: all kinds of the section, and the limits of its
#: fields.
NODE: dict[str, tuple[Any, ...]] = {
    **_RING, **_FEATURE_VALUES,
    "memories": (Memories(gradient=64, weight=64, state=32), *(Memories(planes=planes) for planes in (0, 1)),
                 Memories(gradient=1 << 20), Memories(weight=1 << 24), Memories(gradient=1 << 24, planes=0),
                 Memories(state=1 << 24)),
    "weights": (Weights(), Weights(master=True), Weights(codec="mx9"), Weights(codec="table32")),
    "gradients": ("zero_value", "raw", "mx9", "sum32", "sum16"), "masking": (True, False), "sparsify": (True, False),
    "link": (*_CREDITS, Slots(), Slots(ingress=2), Slots(messages=True), JobSlots(), JobSlots(ingress=2)),
    "role": (Peer(), Peer(interleaved=True), RootReduce(), Worker(), Worker(broadcast_formats=True)),
    "compute": (None, *(Compute(rows=rows, operands=operands) for rows, operands in itertools.product(
        (1, 2, 4), ("fp32", "bf16", "mx9", "nvfp4"))), Compute(rows=1, codebook=16), Compute(rows=1, scale_mask=True),
        Compute(rows=1, sequences=True), Compute(rows=1, buffer_tags=True), Compute(rows=1, far=1 << 24)),
}
SERVER: dict[str, tuple[Any, ...]] = {
    **_RING, **{name: values for name, values in _FEATURE_VALUES.items() if name != "Quantization"},
    "memories": (ServerMemories(), ServerMemories(gradient=64, weight=64, state=32, far=128),
                 ServerMemories(planes=0, far=1 << 24), ServerMemories(weight=1 << 24, planes=0, far=1 << 24),
                 ServerMemories(gradient=1 << 24)),
    "link": _CREDITS, "role": (Server(), Server(broadcast_formats=True)),
}
INT16: dict[str, tuple[Any, ...]] = {
    "memories": (Int16Memories(), Int16Memories(gradient=32), Int16Memories(weight=64)),
    "masking": (True, False), "sparsify": (True, False),
}
_KINDS = ((NodeConfig, NODE), (ServerConfig, SERVER), (Int16Config, INT16))

#: Values for sections that another section may require, in the order in which they are tried. All other sections
#: are kept as small and simple as possible.
_CONTEXTS: dict[str, tuple[Any, ...]] = {
    "link": (Replay(), Credits(), Slots()), "programs": (Programs(), None, Programs(move_queue=True)),
    "lanes": (4, 8, 2, 1), "topology": (SingleRing(), SingleRing(max_nodes=1), SingleRing(max_nodes=255)),
    "stub": (None, ComputeStub()), "segment": (512,),
}
_PLAIN: dict[str, Any] = {"gradients": "zero_value", "masking": False, "sparsify": False}


def listed() -> set[frozenset[str]]:
    """Pairs of sections that the table of couplings lists, among the sections for which values are drawn."""
    return {frozenset(coupling.sections) for coupling in all_couplings()
            if len(coupling.sections) == 2 and NODE.keys() >= set(coupling.sections)}


def made(kind: type, values: dict[str, Any]) -> Any:
    """Build a configuration from sections and features; raises ValueError if it is invalid."""
    features = tuple(values[name] for name in FEATURES if values.get(name) is not None)
    fields = {name: value for name, value in values.items() if name not in FEATURES}
    return kind(**fields, features=features)


def _allowed(kind: type, table: dict[str, tuple[Any, ...]], fixed: dict[str, Any]) -> bool:
    """Whether any configuration with these section values is valid."""
    names = [name for name in _CONTEXTS if name in table and name not in fixed]
    plain = {name: value for name, value in _PLAIN.items() if name in table}
    for chosen in itertools.product(*(_CONTEXTS[name] for name in names)):
        try:
            made(kind, {**plain, **dict(zip(names, chosen, strict=True)), **fixed})
        except ValueError:
            continue
        return True
    return False


def refused() -> Iterator[tuple[str, dict[str, Any]]]:
    """Pairs of section values that no configuration may contain, each with the configuration type."""
    for kind, table in _KINDS:
        if kind is Int16Config:
            for memories, masking, sparsify in itertools.product(*table.values()):
                Int16Config(memories=memories, masking=masking, sparsify=sparsify)
            continue
        for section, other in itertools.combinations(table, 2):
            for pair in itertools.product(table[section], table[other]):
                fixed = dict(zip((section, other), pair, strict=True))
                if not _allowed(kind, table, fixed):
                    yield kind.__name__, fixed


def small(generator: random.Random) -> Configuration:
    """Draw a valid node with small memories and some random section values."""
    while True:
        values: dict[str, Any] = {
            "lanes": 1, "segment": 32, "memories": Memories(gradient=64, weight=64, state=32, planes=0),
            "masking": False, "sparsify": False}
        for name in generator.sample(sorted(NODE), 3):
            if name not in ("memories", "segment"):
                values[name] = generator.choice(NODE[name])
        try:
            config: Configuration = made(NodeConfig, values)
        except ValueError:
            continue
        return config


def neighbours(config: Configuration, generator: random.Random, count: int) -> Iterator[Configuration]:
    """Yield ``count`` valid nodes that differ from ``config`` in one section, or only in how a section is written."""
    while count:
        name = generator.choice(sorted(NODE))
        value = generator.choice(NODE[name])
        kept = {**{part: getattr(config, part) for part in NODE if part not in FEATURES},
                **{part: kind() if kind() in config.features else None for part, kind in FEATURES.items()}}
        if name in ("memories", "compute") and value is not None and max(
                getattr(value, "gradient", 0), getattr(value, "weight", 0), getattr(value, "far", 0)) > 1 << 16:
            continue
        try:
            yield made(NodeConfig, kept | {name: value})
        except ValueError:
            continue
        count -= 1


def circuit(config: Configuration) -> str:
    """Digest of a node's RTLIL, excluding the configuration hash."""
    with mock.patch.object(Configuration, "hash", 0):
        text = rtlil.convert(node_of(config), name="node", emit_src=False)
    return hashlib.sha256(text.encode()).hexdigest()
