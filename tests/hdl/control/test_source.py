"""Tests of how engine inputs are matched to their sources in a node description: hdl/control/source.py."""

import dataclasses

import pytest

from hdl.config import Memories, NodeConfig, SingleRing
from hdl.control.engine import check_engines
from hdl.control.source import (
    LATCHED_SETTINGS,
    WEIGHT_VERSION,
    Checked,
    Interface,
    Latched,
    Setting,
    SettingField,
    Status,
)
from tests.hdl import fill
from tests.refusals import refuses

CONFIG = NodeConfig(
    lanes=2, segment=32, topology=SingleRing(max_nodes=1),
    memories=Memories(gradient=128, weight=96, state=32, planes=0), masking=False)
FILLER = fill.describe(CONFIG)
_UPDATES = ("gradient_scale, clip, weight_factor, learning_rate, first_decay, first_gain, second_decay, second_gain, "
            "epsilon")
_SETTINGS = f"link_reset, optimizer, {_UPDATES}, mask_alternative, mask_threshold, timeout"


@pytest.mark.parametrize(("source", "expected"), [
    (Setting("clap"), f"must be one of the settings {_SETTINGS}, not 'clap'"),
    (Setting("quorum"), f"must be one of the settings {_SETTINGS}, not 'quorum'"),
    (SettingField("THROTTLE_COMPUTE", "engine"), f"must be one of the settings {_SETTINGS}, not 'throttle_compute'"),
    (SettingField("OPTIMIZER", "role"), "must be one of the fields of OPTIMIZER rule, nesterov, packed_state, not "
                                        "'role'"),
    (Latched("rule"), f"must be one of the settings of updates {_UPDATES}, not 'rule'"),
    (Checked("clip"), "must be one of the settings of checks rule, packed_state, not 'clip'"),
])
def test_refusals(source, expected):
    """A nonexistent source is rejected with a message that names the input and its engine."""
    described = dataclasses.replace(FILLER, inputs={"number": source})
    refuses(f"Input number of engine filler {expected}", check_engines, [described], CONFIG)


@pytest.mark.parametrize("source", [
    Setting("link_reset"), SettingField("OPTIMIZER", "rule"), Latched("clip"), Checked("rule"), WEIGHT_VERSION])
def test_sources(source):
    check_engines([dataclasses.replace(FILLER, inputs={"number": source})], CONFIG)


@pytest.mark.parametrize("purpose", [Status("last_error"), LATCHED_SETTINGS, Interface("anything")])
def test_purposes(purpose):
    """An output that is a status or an interface cannot serve as the source of an input."""
    check_engines([dataclasses.replace(FILLER, outputs={purpose: "number"})], CONFIG)
    refuses(f"Input number of engine filler must have a source, not {purpose!r}", check_engines,
            [dataclasses.replace(FILLER, inputs={"number": purpose})], CONFIG)


def test_refused_status():
    refuses("Output number of engine filler must be one of the statuses last_error, not 'slot_0'", check_engines,
            [dataclasses.replace(FILLER, outputs={Status("slot_0"): "number"})], CONFIG)


def test_pairs():
    other = dataclasses.replace(FILLER, name="other", operations=())
    outputs = {WEIGHT_VERSION: "weight_version"}
    refuses("Engines of a node must have one output WeightVersion(), not 2", check_engines,
            [dataclasses.replace(FILLER, outputs=outputs), dataclasses.replace(other, outputs=outputs)], CONFIG)
    joined = dataclasses.replace(FILLER, joins={"words": "words"})
    refuses("Interface words must join two engines of a node, not 1", check_engines, [joined, other], CONFIG)
    check_engines([joined, dataclasses.replace(other, joins={"words": "words"})], CONFIG)
