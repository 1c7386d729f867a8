# amaranth: UnusedElaboratable=no
"""Digests of the netlists of nodes, which depend neither on the configuration's hash nor on names."""

import random
from typing import Any
from unittest import mock

from hdl.board import BOARDS, node_of
from hdl.config import Configuration, Credits, Memories, NodeConfig, Optimizer, Peer, RootReduce, SingleRing, Weights
from hdl.control import register_file
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
from tests.known_answers import netlist

__all__ = ["COUNT", "SEED", "VALUES", "board_nodes", "digest", "draw", "node_config"]

#: Seed with which :func:`draw` draws configurations.
SEED = 55
#: Number of configurations with stored answers.
COUNT = 50

#: Options of every random configuration, which give the node little memory.
_SMALL: dict[str, Any] = {"segment": 32, "gradient_words": 1024, "weight_words": 1024, "state_words": 512,
                          "activation_words": 512, "program_depth": 16}

#: Values that can be drawn for each option, apart from its default.
VALUES: dict[str, tuple[Any, ...]] = {
    "lanes": (1, 2, 8), "segment": (64,), "state_planes": (0, 1), "ingress_segments": (2, 3), "update_lanes": (2, 4),
    "update_interval": (2, 4, 8), "multiplier_dsps": (1, 2), "masking": (False,), "error_feedback": (False,),
    "quantization": (True,), "stand_in": (True,), "compute": (1, 2), "far_words": (2048, 4096), "scale_mask": (True,),
    "operands": ("bf16", "mx9"), "centroids": (4, 16), "sequences": (True,), "row_owners": (True,), "queues": (2, 3),
    "versions": (True,), "program_banks": (2,),
    "weight_codec": ("mx9", "bf16", "centroid16", "table32", "mxfp8_e4m3", "nvfp4"), "masters": (True,),
    "gradient_codec": ("raw", "mx6", "bf16", "mxfp4_e2m1"), "nodes_max": (1, 4, 255), "ring_ports": (2,),
    "replay": (True,), "rounds": (True,), "role": ("worker", "server"), "fetch_formats": (True,),
    "one_owner": (True,), "interleaved": (True,), "throttles": (True,), "restorable": (True,),
    "tenants": (2,), "slots": (True,), "jobs": (2,), "messages": (True,), "element": ("int16",),
}

#: For each random option, the options that it needs in addition.
_COMPANIONS: dict[str, dict[str, Any]] = {
    "rounds": {"queues": 2, "replay": True, "stand_in": True}, "slots": {"queues": 2, "replay": True},
    "jobs": {"queues": 2, "replay": True, "slots": True}, "messages": {"queues": 2, "replay": True, "slots": True},
    "role": {"masking": False, "error_feedback": False, "far_words": 4096, "compute": 0},
    "fetch_formats": {"role": "worker", "compute": 1},
    "centroids": {"compute": 1}, "operands": {"compute": 1}, "sequences": {"compute": 1},
    "row_owners": {"compute": 1}, "scale_mask": {"compute": 1}, "far_words": {"compute": 1},
    "versions": {"queues": 2}, "program_banks": {"queues": 2},
    "element": {"lanes": 1, "state_planes": 0, "state_words": 32, "nodes_max": 1},
}


#: Fields of configuration sections, keyed by the option's name in answers.json. If a section is missing, its fields
#: are unused.
_FIELDS = {
    "memories": {"gradient_words": "gradient", "weight_words": "weight", "state_words": "state",
                 "state_planes": "planes"},
    "optimizer": {"update_lanes": "lanes", "update_interval": "interval", "multiplier_dsps": "dsps"},
    "compute": {"compute": "rows", "activation_words": "activations", "operands": "operands",
                "centroids": "codebook", "scale_mask": "scale_mask", "sequences": "sequences",
                "row_owners": "buffer_tags", "far_words": "far"},
    "programs": {"program_depth": "depth", "program_banks": "banks", "versions": "versions"},
    "ingress": {"ingress_segments": "ingress"},
}
_FEATURES = {"quantization": Quantization, "restorable": SettableVersion, "throttles": Throttles}


def _one_of(options: dict[str, Any], *kinds: str) -> str | None:
    """Return the only option of ``kinds`` that is set, or None; raise ``ValueError`` if several are set."""
    chosen = [kind for kind in kinds if options.get(kind)]
    if len(chosen) > 1:
        raise ValueError(f"Options must be one of {', '.join(kinds)}, not {' and '.join(chosen)}")
    return chosen[0] if chosen else None


def _link(options: dict[str, Any], fields: dict[str, Any]) -> Any:
    if _one_of(options, "slots") is None and (options.get("messages") or options.get("jobs", 1) > 1):
        raise ValueError("Options messages and jobs must have slots")
    if not options.get("slots"):
        return (Replay if options.get("replay") else Credits)(**fields)
    if options.get("jobs", 1) == 1:
        return Slots(**fields, messages=options.get("messages", False))
    if options.get("messages"):
        raise ValueError("Option jobs must have no messages")
    return JobSlots(**fields)


def _role(options: dict[str, Any]) -> Any:
    formats = {"broadcast_formats": True} if options.get("fetch_formats") else {}
    kind = options.get("role", "node")
    chosen = _one_of(options | {"role": kind != "node"}, "role", "one_owner", "interleaved")
    if kind == "node" and formats:
        raise ValueError("Option fetch_formats must have a role")
    if chosen == "role":
        return (Worker if kind == "worker" else Server)(**formats)
    return RootReduce() if chosen == "one_owner" else Peer(interleaved=chosen == "interleaved")


def node_config(options: dict[str, Any]) -> Configuration:
    """Return the configuration of a node with options of answers.json; raise ``ValueError`` if they are invalid."""
    parts = {name: {field: options[option] for option, field in fields.items() if option in options}
             for name, fields in _FIELDS.items()}
    engines = {"masking": options.get("masking", True), "sparsify": options.get("error_feedback", True)}
    if options.get("element") == "int16":
        if options.keys() - {*_FIELDS["memories"], *_FIELDS["compute"], *_FIELDS["programs"], "lanes", "segment",
                             "nodes_max", "element", "masking", "error_feedback"}:
            raise ValueError("Options of an int16 node must be its memories, masking and error_feedback")
        memories = {name: parts["memories"][name] for name in ("gradient", "weight")}
        return Int16Config(memories=Int16Memories(**memories), **engines)
    queues, role = options.get("queues", 1), _role(options)
    features = [feature() for option, feature in _FEATURES.items() if options.get(option)]
    topology = Grid if options.get("ring_ports") == 2 else SingleRing
    common = {
        **{name: options[name] for name in ("lanes", "segment") if name in options},
        "topology": topology(**{"max_nodes": options["nodes_max"]} if "nodes_max" in options else {}),
        "optimizer": Optimizer(**parts["optimizer"]), "link": _link(options, parts["ingress"]), "role": role,
        "programs": Programs(**parts["programs"], move_queue=queues == 3) if queues > 1 else None,
        "stub": ComputeStub(quorum=options.get("rounds", False)) if options.get("stand_in") else None,
        "features": (*features, *([Tenants()] if options.get("tenants") == 2 else ())),
    }
    if options.get("rounds") and not options.get("stand_in"):
        raise ValueError("Option rounds must have stand_in")
    far = options.get("far_words", 0)
    if isinstance(role, Server):
        if options.get("compute") or engines["masking"] or engines["sparsify"] or {
                "weight_codec", "masters", "gradient_codec"} & options.keys():
            raise ValueError("Options of a server must have no engines and no codecs")
        return ServerConfig(**common, memories=ServerMemories(**parts["memories"], far=far))
    if far and not options.get("compute"):
        raise ValueError("Option far_words must have compute")
    codec = options.get("weight_codec", "raw")
    return NodeConfig(
        **common, **engines, memories=Memories(**parts["memories"]),
        compute=Compute(**parts["compute"]) if options.get("compute") else None,
        weights=Weights(codec=codec, master=codec == "raw" and options.get("masters", False)),
        gradients=options.get("gradient_codec", "zero_value"))


def _drawn(generator: random.Random, first: str) -> dict[str, Any]:
    """Draw options of a valid node, in which the option ``first`` and a few more are not at their defaults."""
    while True:
        names = [first, *(name for name in VALUES if name != first and generator.random() < 0.15)]
        options = dict(_SMALL)
        for name in reversed(names):
            options |= _COMPANIONS.get(name, {}) | {name: generator.choice(VALUES[name])}
        try:
            node_config(options)
        except ValueError:
            continue
        return options


def draw(count: int) -> list[dict[str, Any]]:
    """Draw options of ``count`` valid nodes from :data:`SEED`. Each node sets the next option, and a few more at
    random."""
    generator = random.Random(SEED)
    names = list(VALUES)
    return [_drawn(generator, names[number % len(names)]) for number in range(count)]


def board_nodes() -> dict[str, Configuration]:
    """Configurations of all different nodes of boards, each keyed by the first board with this node."""
    nodes: dict[Configuration, str] = {}
    for name, board in BOARDS.items():
        nodes.setdefault(board.node, name)
    return {name: node for node, name in nodes.items()}


def digest(config: Configuration) -> dict[str, Any]:
    """Digest of a node's netlist, without the configuration's hash, and the netlist's number of cells."""
    # Stored answers contain the ID of the first register map, which is a constant in each netlist.
    with (mock.patch.object(Configuration, "hash", 0),
          mock.patch.object(register_file, "IDENTIFIER", 0x67726472)):
        return netlist.digest(node_of(config))
