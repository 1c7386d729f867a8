"""The parameters of a node: hdl/config.py."""

import dataclasses
import re

import pytest

from hdl.compression import registry
from hdl.config import NodeConfig

INT16 = {"element": "int16"}
ALONE = {"lanes": 1, "nodes_max": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lanes": 3}, r"^Lane count must be 1, 2, 4 or 8, not 3$"),
        ({"segment": 96}, r"^Segment must be 32 times a power of two, up to 512, not 96$"),
        ({"segment": 1024}, r"^Segment must be 32 times a power of two, up to 512, not 1024$"),
        ({"segment": 32, "gradient_words": 1 << 16, "weight_words": 65568},
         r"^weight_words must be at most 65536 with segments of 32 elements, since a block has at most 1024 of them, "
         r"not 65568$"),
        ({"gradient_words": 1 << 20},
         r"^gradient_words must be at most 524288 with segments of 256 elements, since a block has at most 1024 of "
         r"them, not 1048576$"),
        ({"gradient_words": 100}, r"^gradient_words must be a multiple of 32 between 32 and 16777216, not 100$"),
        ({"weight_words": 0}, r"^weight_words must be a multiple of 32 between 32 and 16777216, not 0$"),
        ({"state_words": "64"}, r"^state_words must be a multiple of 32 between 32 and 16777216, not '64'$"),
        ({"state_planes": 3}, r"^State plane count must be 0, 1 or 2, not 3$"),
        ({"ingress_segments": 1}, r"^Ingress must hold at least 2 segments, not 1$"),
        ({"ingress_segments": 16, "replay": True}, r"^Ingress must hold at most 15 segments with replay, not 16$"),
        ({"replay": 1}, r"^replay must be True or False, not 1$"),
        ({"update_interval": 3}, r"^Update interval must be 1, 2, 4 or 8, not 3$"),
        ({"update_lanes": 8}, r"^Update lanes must be 1, 2, 4 or 8, and at most the lanes, not 8$"),
        ({"multiplier_dsps": 3}, r"^DSP blocks per multiplier must be 1, 2 or 4, not 3$"),
        ({"masking": 1}, r"^masking must be True or False, not 1$"),
        ({"error_feedback": None}, r"^error_feedback must be True or False, not None$"),
        ({"quantization": 0}, r"^quantization must be True or False, not 0$"),
        ({"stand_in": 1}, r"^stand_in must be True or False, not 1$"),
        ({"compute": 3}, r"^Rows of multiply-accumulate units must be 0, 1, 2 or 4, not 3$"),
        ({"compute": True}, r"^Rows of multiply-accumulate units must be 0, 1, 2 or 4, not True$"),
        ({"compute": 1, "lanes": 1}, r"^Rows of multiply-accumulate units must be at most the lanes, of which there "
                                     r"must be 2 or more, not 1 with 1 lanes$"),
        ({"centroids": 32}, r"^Centroid count must be 0, 4, 8 or 16, not 32$"),
        ({"sequences": 1}, r"^sequences must be True or False, not 1$"),
        ({"centroids": False}, r"^Centroid count must be 0, 4, 8 or 16, not False$"),
        ({"compute": 4, "lanes": 2}, r"^Rows of multiply-accumulate units must be at most the lanes, of which there "
                                     r"must be 2 or more, not 4 with 2 lanes$"),
        ({"activation_words": 16}, r"^activation_words must be a multiple of 32 between 32 and 16777216, not 16$"),
        ({"operands": "fp8"}, r"^Operands must be one of fp32, bf16, mx9, mx6, mx4, mxfp4_e2m1, "
                               r"mxfp4_e2m1_up, nvfp4, not 'fp8'$"),
        ({"operands": "mx9", "compute": 4, "lanes": 8}, r"^Units that multiply in mx9 must be at most 16, not 4 rows "
                                                        r"of 8$"),
        ({"role": "boss"}, r"^Role must be one of node, worker, server, not 'boss'$"),
        ({"role": "server"}, r"^Far memory of a server must hold its weights and its state, 32,768 words, not 0$"),
        ({"role": "server", "far_words": 32768}, r"^Server must have no engine that reads weights apart from "
                                                 r"collectives, not masking and error_feedback$"),
        ({"role": "server", "compute": 4}, r"^Server must have no rows of multiply-accumulate units, not 4$"),
        ({"role": "server", "masters": True}, r"^Server must have weights as raw, no masters, and gradients as "
                                              r"zero_value, not 'raw' and 'zero_value'$"),
        ({"role": "worker", "gradient_codec": "mx9"}, r"^Worker must have weights as raw, no masters, and gradients "
                                                      r"as zero_value, not 'raw' and 'mx9'$"),
        ({"role": "worker", "weight_codec": "mx9"}, r"^Worker must have weights as raw, no masters, and gradients as "
                                                    r"zero_value, not 'mx9' and 'zero_value'$"),
        ({"fetch_formats": 1}, r"^fetch_formats must be True or False, not 1$"),
        ({"fetch_formats": True}, r"^Node with formats of FETCH must be a worker or a server with 2 lanes or more, "
                                  r"not a node with 4$"),
        ({"fetch_formats": True, "role": "worker", "lanes": 1}, r"^Node with formats of FETCH must be a worker or a "
                                                                r"server with 2 lanes or more, not a worker with 1$"),
        ({"row_owners": 1}, r"^row_owners must be True or False, not 1$"),
        ({"throttles": 1}, r"^throttles must be True or False, not 1$"),
        ({"one_owner": None}, r"^one_owner must be True or False, not None$"),
        ({"interleaved": 1}, r"^interleaved must be True or False, not 1$"),
        ({"interleaved": True, "one_owner": True},
         r"^Node with interleaved must have no one_owner, and role node, not True and 'node'$"),
        ({"interleaved": True, "role": "worker"},
         r"^Node with interleaved must have no one_owner, and role node, not False and 'worker'$"),
        ({"interleaved": True, "ingress_segments": 2},
         r"^Ingress of a node with interleaved must hold at least 3 segments, not 2$"),
        ({"one_owner": True, "rounds": True, "queues": 2, "replay": True, "stand_in": True},
         r"^Node with one_owner must have no rounds$"),
        ({"one_owner": True, "gradient_codec": "raw"},
         r"^Node with one_owner must have weights as raw, gradients as zero_value, and role node, not 'raw', 'raw' "
         r"and 'node'$"),
        ({"restorable": 1}, r"^restorable must be True or False, not 1$"),
        ({"tenants": 3}, r"^Tenant count must be 1 or 2, not 3$"),
        ({"tenants": True}, r"^Tenant count must be 1 or 2, not True$"),
        ({"queues": 4}, r"^Queue count must be 1, 2 or 3, not 4$"),
        ({"program_depth": 0}, r"^Program depth must be between 1 and 1024, not 0$"),
        ({"program_depth": 1025}, r"^Program depth must be between 1 and 1024, not 1025$"),
        ({"weight_codec": "mx7"}, rf"^Weight codec must be one of {', '.join(registry.WEIGHT_CODECS)}, not 'mx7': did"
                                  r" you mean mx9 or mx6 or mx4\?$"),
        ({"gradient_codec": "mx7"}, rf"^Gradient codec must be one of {', '.join(registry.GRADIENT_CODECS)}, "
                                    r"not 'mx7': did you mean mx9 or mx6 or mx4\?$"),
        ({"nodes_max": 256}, r"^Largest ring must be between 1 and 255 nodes, not 256$"),
        ({"nodes_max": 17, "queues": 2, "replay": True},
         r"^Largest ring must be at most 16 nodes with two queues and replay, since ranks in control words and in "
         r"rounds have 4 bits, not 17$"),
        ({"nodes_max": 255, "ring_ports": 2},
         r"^Largest ring must be at most 16 nodes with two ports, since rows and columns of a grid have at most as "
         r"many, not 255$"),
        ({"ring_ports": 3}, r"^Ring port count must be 1 or 2, not 3$"),
        ({"ring_ports": True}, r"^Ring port count must be 1 or 2, not True$"),
        ({"element": "bf16"}, r"^Element must be fp32 or int16, not 'bf16'$"),
        (INT16, r"^Lane count of an int16 node must be 1, not 4$"),
        (INT16 | {"lanes": 1}, r"^Largest ring of an int16 node must be 1, not 16$"),
        (INT16 | ALONE, r"^State plane count of an int16 node must be 0, not 2$"),
        (INT16 | ALONE | {"state_planes": 0, "quantization": True},
         r"^quantization of an int16 node must be False, not True$"),
        (INT16 | ALONE | {"state_planes": 0, "stand_in": True},
         r"^stand_in of an int16 node must be False, not True$"),
        (INT16 | ALONE | {"state_planes": 0, "throttles": True},
         r"^throttles of an int16 node must be False, not True$"),
        (INT16 | ALONE | {"state_planes": 0, "one_owner": True},
         r"^one_owner of an int16 node must be False, not True$"),
        (INT16 | ALONE | {"state_planes": 0, "interleaved": True},
         r"^interleaved of an int16 node must be False, not True$"),
        (INT16 | ALONE | {"state_planes": 0, "restorable": True},
         r"^restorable of an int16 node must be False, not True$"),
        (INT16 | ALONE | {"state_planes": 0, "tenants": 2}, r"^Tenant count of an int16 node must be 1, not 2$"),
        (INT16 | ALONE | {"state_planes": 0, "queues": 2}, r"^Queue count of an int16 node must be 1, not 2$"),
        (INT16 | ALONE | {"state_planes": 0, "weight_codec": "mx9"},
         r"^Weight codec of an int16 node must be raw, not 'mx9'$"),
        (INT16 | ALONE | {"state_planes": 0, "gradient_codec": "raw"},
         r"^Gradient codec of an int16 node must be zero_value, not 'raw'$"),
        (INT16 | ALONE | {"state_planes": 0, "role": "worker"},
         r"^Role of an int16 node must be node, not 'worker'$"),
        (INT16 | ALONE | {"state_planes": 0, "gradient_words": 16416},
         r"^gradient_words of an int16 node must be at most 16384, not 16416$"),
        (INT16 | ALONE | {"state_planes": 0, "weight_words": 32768},
         r"^weight_words of an int16 node must be at most 16384, not 32768$"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        NodeConfig(**options)


def test_codebooks_are_not_for_gradients():
    """Codecs with codebooks are not closed under addition."""
    having = [name for name, codec in registry.WEIGHT_CODECS.items() if codec.codebook_words]
    assert having == ["table32", "centroid16", "centroid64"]
    assert set(registry.GRADIENT_CODECS) == {"zero_value", *registry.WEIGHT_CODECS} - set(having)
    for name in having:
        message = ("^Gradient codec must take any number, since a sum of values in a codebook need not be in it: one "
                   f"of zero_value, raw, .*, not '{name}'$")
        with pytest.raises(ValueError, match=message):
            NodeConfig(gradient_codec=name)


def test_segments_of_a_block():
    """A ring of one sends no packet, so its block may have any number of segments."""
    assert NodeConfig(gradient_words=1 << 19, segment=256).gradient_words == 1 << 19
    assert NodeConfig(gradient_words=1 << 20, segment=512).segment == 512
    assert NodeConfig(gradient_words=1 << 24, nodes_max=1).gradient_words == 1 << 24


def test_hash_covers_every_parameter():
    """Two nodes of the same hash are the same, so a driver can trust it."""
    changed = {"lanes": 2, "segment": 64, "update_lanes": 2, "update_interval": 4, "multiplier_dsps": 1,
               "ingress_segments": 5, "nodes_max": 8, "state_planes": 1,
               "gradient_words": 64, "weight_words": 64, "state_words": 64, "masking": False,
               "error_feedback": False, "quantization": True, "weight_codec": "mx9",
               "gradient_codec": "raw", "stand_in": True, "queues": 2, "program_depth": 65, "compute": 4,
               "activation_words": 64, "operands": "bf16", "scale_mask": True, "ring_ports": 2, "replay": True,
               "masters": True, "versions": True, "centroids": 16, "sequences": True, "row_owners": True,
               "role": "worker", "throttles": True, "one_owner": True, "restorable": True, "program_banks": 2,
               "tenants": 2, "interleaved": True}
    far = NodeConfig(compute=1)
    assert far.hash != dataclasses.replace(far, far_words=64).hash
    reduced = NodeConfig(lanes=1, nodes_max=1, state_planes=0, element="int16")
    assert reduced.hash != dataclasses.replace(reduced, element="fp32").hash
    joined = NodeConfig(queues=2, replay=True, stand_in=True)
    assert joined.hash != dataclasses.replace(joined, rounds=True).hash
    slots = dataclasses.replace(joined, slots=True)
    assert len({joined.hash, slots.hash, dataclasses.replace(slots, messages=True).hash}) == 3
    worker = NodeConfig(role="worker")
    assert worker.hash != dataclasses.replace(worker, fetch_formats=True).hash
    assert slots.hash != dataclasses.replace(slots, jobs=2).hash
    assert {*changed, "element", "rounds", "slots", "jobs", "messages", "far_words", "fetch_formats"} == {
        field.name for field in dataclasses.fields(NodeConfig)}
    hashes = {NodeConfig().hash, *(NodeConfig(**{name: value}).hash for name, value in changed.items())}
    assert len(hashes) == len(changed) + 1
    assert NodeConfig().hash == NodeConfig().hash == NodeConfig(
        centroids=0, operands="fp32", sequences=False, row_owners=False, throttles=False,
        one_owner=False, restorable=False, program_banks=1, tenants=1, interleaved=False, messages=False).hash
    assert NodeConfig(compute=4, queues=2).hash == 2375684587  # the digest of the time before these options
    assert 0 <= NodeConfig().hash < 1 << 32


def test_spaces():
    """Masters come behind the state planes, codebooks behind masters, and residuals behind all."""
    def words(**options):
        return NodeConfig(gradient_words=96, weight_words=64, state_words=32, **options).memories.words

    assert words() == (96, 64, 32, 32)
    assert words(state_planes=0) == (96, 64)
    assert words(weight_codec="mx9") == (96, 64, 32, 32, 32)
    assert words(state_planes=0, weight_codec="bf16") == (96, 64, 32)
    assert words(state_planes=0, masters=True) == (96, 64, 32)
    assert words(weight_codec="table32") == (96, 64, 32, 32, 32, 64)
    assert words(state_planes=0, weight_codec="centroid64") == (96, 64, 32, 128)
    assert NodeConfig(weight_codec="mx9").codebook_words == NodeConfig().codebook_words == 0
    assert words(weight_codec="centroid16", gradient_codec="mx9") == (96, 64, 32, 32, 32, 32, 96)
    assert words(gradient_codec="mx9", compute=1, activation_words=128, queues=2) == (96, 64, 32, 32, 96, 128, 512)
    assert words(gradient_codec="raw") == (96, 64, 32, 32)
    assert words(gradient_codec="mx9") == (96, 64, 32, 32, 96)
    assert words(state_planes=0, weight_codec="mx9", gradient_codec="bf16") == (96, 64, 32, 96)


def test_what_a_gradient_codec_makes_of_a_node():
    assert [(config.adds_compressed, config.has_residual)
            for config in (NodeConfig(gradient_codec=name) for name in ("zero_value", "raw", "bf16", "mx4"))
            ] == [(True, False), (False, False), (False, True), (False, True)]


def test_reduced():
    assert not NodeConfig().reduced
    config = NodeConfig(**INT16, **ALONE, state_planes=0, gradient_words=96, weight_words=16384)
    assert config.reduced
    assert config.memories.words == (96, 16384)


@pytest.mark.parametrize(("options", "message"), [
    ({"queues": 1}, "Node with slots must have two queues and replay, which have control words"),
    ({"replay": False}, "Node with slots must have two queues and replay, which have control words"),
    ({"ring_ports": 2}, "Node with slots must not have a second port"),
    ({"role": "worker"}, "Node with slots must not have the role of a worker"),
    ({"one_owner": True}, "Node with slots must not have one_owner"),
    ({"throttles": True}, "Node with slots must not have throttles"),
    ({"slots": 1}, "slots must be True or False, not 1"),
    ({"jobs": 3}, "Job count must be 1 or 2, not 3"),
    ({"jobs": 2, "slots": False}, "Node with two jobs must have slots, and no rounds and messages"),
    ({"jobs": 2, "rounds": True, "stand_in": True}, "Node with two jobs must have slots, and no rounds and messages"),
    ({"jobs": 2, "messages": True}, "Node with two jobs must have slots, and no rounds and messages"),
    ({"messages": 1}, "messages must be True or False, not 1"),
    ({"messages": True, "slots": False}, "Node with messages must have slots, and no rounds"),
    ({"messages": True, "rounds": True, "stand_in": True}, "Node with messages must have slots, and no rounds"),
    ({"element": "int16", "lanes": 1, "nodes_max": 1, "state_planes": 0, "queues": 1, "replay": False},
     "slots of an int16 node must be False, not True"),
])
def test_slots(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        NodeConfig(**{"slots": True, "replay": True, "queues": 2} | options)
