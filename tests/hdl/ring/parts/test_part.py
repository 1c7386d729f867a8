# amaranth: UnusedElaboratable=no
"""Tests of the datapath part descriptions: hdl/ring/parts/part.py and registry.py.

The parts' behaviour is tested on complete rings, in tests/host/driver/test_ring.py and the codec tests there.
"""

import dataclasses
import textwrap

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Module

from hdl.compression.feedback import PacketAdder
from hdl.ring.datapath import Datapath
from hdl.ring.parts import part as contract
from hdl.ring.parts.conditions import is_reduce_scatter
from hdl.ring.parts.part import Channel, Input, Instruction, Output, Part, PartDescription, check_parts, memory_ports
from hdl.ring.parts.registry import parts
from hdl.ring.sequencer import Sequencer
from hdl.ring.sequences import EGRESS, Path
from hdl.ring.setup import setup_layout
from hdl.row_transfer import RowReader
from hdl.streams.stream import beat_layout, connect_stream
from tests.host.rings import CONFIGS, known_formats

FULL = {name: config for name, config in CONFIGS.items() if config.has_ring}
NAMES = {
    "default": ["write_back", "update", "sums", "weights"],
    "mx9": ["write_back", "update", "sums", "residual", "masters", "weights", "weight_codec"],
    "centroid": ["write_back", "update", "sums", "masters", "weights", "weight_codec"],
    "server": ["write_back", "update", "sums", "weights", "fetch"],
}


def part(name="extra", **fields):
    return PartDescription(name=name, component=Part, **fields)


def instruction(name):
    return Instruction(name=name, sequence=EGRESS, shape=1, payload=lambda record, setup: 0)


@pytest.mark.parametrize("name", NAMES)
def test_parts(name):
    """Codecs, master weights and residuals are separate parts of the datapath."""
    assert [part.name for part in parts(CONFIGS[name])] == NAMES[name]


@pytest.mark.parametrize("name", FULL)
def test_ports(name):
    """A ring has a read port for each memory that it reads, and a write port for each memory that it writes."""
    config = FULL[name]
    with known_formats(config):
        ports = memory_ports(config, parts(config))
        memories = set(config.memory_map.names) - {"trace", "activations", "scales"}
        expected = {f"{memory}_{kind}" for memory in memories for kind in ("read", "write")}
        assert ports.keys() == expected - {"codebook_write", "counts_read"}
        assert ports.keys() <= Datapath(config=config).signature.members.keys()


def test_sequences():
    """Only nodes with a weight codec have setup fields for decoding. Sums that are decoded follow a sequence of their
    own, which ends with the final sums instead of a gather."""
    paths = {name: [field for field in setup_layout(CONFIGS[name]).members
                    if field.startswith(("encode_", "decode_", "sums_"))] for name in ("default", "mx9")}
    assert paths == {"default": ["encode_scatter"], "mx9": ["decode_gather", "sums_scatter", "sums_gather"]}


def test_errors():
    chosen = parts(CONFIGS["default"])
    check_parts(chosen)
    cases = [
        (part("sums"), "Parts of a datapath must have different names, not write_back, update, sums, weights, sums"),
        (part(instructions=(instruction("more"), instruction("bursts"))),
         "Instructions of a datapath must have different names, not "),
        (part(inputs=(Input("i", Channel.UPDATED),)), "Channel UPDATED must be taken once, not 2 times"),
        (part(inputs=(Input("i", Channel.OWN),)), "Channel OWN must be taken once, not 2 times"),
        (part(outputs=(Output("o", Channel.ERRORS),)), "Channel ERRORS must be taken once, not 0 times"),
        (part(inputs=(Input("i", Channel.ERRORS),)),
         "Channel ERRORS must be taken by nobody, since nobody gives it, not 1 times"),
        (part(inputs=(Input("i", Channel.INGRESS),)), "Input i must choose packets if it takes INGRESS, "),
        (part(inputs=(Input("gathered", Channel.INGRESS, packets=lambda record, setup: 1),)),
         "Input gathered must have one condition in all parts, not several"),
        (part(pulses=("beats",)), "Pulse of a part must be one of elements_encoded, "),
    ]
    for extra, message in cases:
        with pytest.raises(ValueError, match=f"^{message}"):
            check_parts((*chosen, extra))
    with pytest.raises(ValueError, match=r"^Channel WEIGHTS must be taken by nobody, "):
        check_parts([dataclasses.replace(part, outputs=part.outputs[1:]) if part.name == "weights" else part
                     for part in chosen])


def test_example():
    """The part that the interface's documentation shows as an example can be elaborated, and can replace the residual
    part."""
    names = vars(contract) | {each.__name__: each for each in (
        Module, PacketAdder, Path, RowReader, beat_layout, connect_stream, is_reduce_scatter)}
    exec(textwrap.dedent(contract.__doc__.split("gradients::\n")[1]), names)
    config = CONFIGS["mx9"]
    example = names["describe"](config)
    lossless = [dataclasses.replace(each, outputs=tuple(out for out in each.outputs if out.name != "errors"))
                for each in parts(config) if each.name != "residual"]
    check_parts([*lossless, example])
    assert "offset_job_queue" in rtlil.convert(Sequencer(config=config, parts=[*lossless, example]))
    assert "\\residuals_read" in rtlil.convert(example.component(config=config, description=example))
