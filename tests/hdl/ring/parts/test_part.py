# amaranth: UnusedElaboratable=no
"""Descriptions of the datapath's parts: hdl/ring/parts/part.py and chosen.py.

What parts do is tested on whole rings, in tests/host/driver/test_ring.py and its neighbours for codecs.
"""

import dataclasses

import pytest

from hdl.ring.datapath import Datapath
from hdl.ring.parts.chosen import parts
from hdl.ring.parts.part import Given, PartDescription, Sink, Socket, Step, check_parts, memory_ports
from hdl.ring.setup import setup_layout
from hdl.ring.walks import EGRESS
from tests.host.rings import CONFIGS, known_formats

FULL = {name: config for name, config in CONFIGS.items() if not config.is_int16}
NAMES = {
    "default": ["landing", "update", "sums", "weights"],
    "mx9": ["landing", "update", "sums", "residual", "masters", "weights", "weight_codec"],
    "centroid": ["landing", "update", "sums", "masters", "weights", "weight_codec"],
    "server": ["landing", "update", "sums", "weights", "fetch"],
}


def part(name="extra", **fields):
    return PartDescription(name=name, make=lambda description: None, **fields)


def step(name):
    return Step(name=name, walk=EGRESS, shape=1, payload=lambda at, setup: 0)


@pytest.mark.parametrize("name", NAMES)
def test_chosen(name):
    """A codec, masters and residuals are parts of their own."""
    assert [part.name for part in parts(CONFIGS[name])] == NAMES[name]


@pytest.mark.parametrize("name", FULL)
def test_ports(name):
    """Every memory that the ring has a use for is read, and written unless only the host does so."""
    config = FULL[name]
    with known_formats(config):
        ports = memory_ports(config, parts(config))
        memories = set(config.memory_map.names) - {"trace", "activations", "scales"}
        expected = {f"{memory}_{kind}" for memory in memories for kind in ("read", "write")}
        assert ports.keys() == expected - {"codebook_write", "counts_read"}
        assert ports.keys() <= Datapath(config=config).signature.members.keys()


def test_walks():
    """Only a codec of weights has a walk for landing, and so a tour in the setup. Sums that are decoded have a walk
    of their own, with last sums in place of a gather."""
    tours = {name: [field for field in setup_layout(CONFIGS[name]).members
                    if field.startswith(("encode_", "landing_", "sums_"))] for name in ("default", "mx9")}
    assert tours == {"default": ["encode_scatter"], "mx9": ["landing_gather", "sums_scatter", "sums_gather"]}


def test_errors():
    chosen = parts(CONFIGS["default"])
    check_parts(chosen)
    cases = [
        (part("sums"), "Parts of a datapath must have different names, not landing, update, sums, weights, sums"),
        (part(steps=(step("more"), step("bursts"))), "Steps of a datapath must have different names, not "),
        (part(takes={Socket.UPDATED: "i"}), "Socket UPDATED must be taken once, not 2 times"),
        (part(takes={Socket.OWN: "i"}), "Socket OWN must be taken once, not 2 times"),
        (part(gives=(Given(name="o", to=Socket.LOST),)), "Socket LOST must be taken once, not 0 times"),
        (part(takes={Socket.LOST: "i"}), "Socket LOST must be taken by nobody, since nobody gives it, not 1 times"),
        (part(receives=(Sink(name="gathered", when=lambda at, setup: 1),)),
         "Sink gathered must have one condition in all parts, not several"),
        (part(pulses=("beats",)), "Pulse of a part must be one of elements_encoded, "),
    ]
    for extra, message in cases:
        with pytest.raises(ValueError, match=f"^{message}"):
            check_parts((*chosen, extra))
    with pytest.raises(ValueError, match=r"^Socket WEIGHTS must be taken by nobody, "):
        check_parts([dataclasses.replace(part, gives=part.gives[1:]) if part.name == "weights" else part
                     for part in chosen])
