"""Descriptions of features on the host, and the default for features that have no code on the host."""

import pytest

from hdl.config import NodeConfig
from hdl.registry import FEATURES, section
from host.feature import Feature, feature, features_of
from tests.refusals import refuses


def test_each():
    for name in FEATURES:
        assert isinstance(feature(name), Feature)
    assert type(feature("mx")) is Feature  # the default
    assert type(feature("programs")) is not Feature


def test_a_feature_that_is_not_there():
    refuses("Feature idle_count must be in this copy of gradring, which has been made without it", feature,
            "idle_count")


def test_features_of_a_node():
    assert features_of(NodeConfig()) == []
    node = NodeConfig(link=section("Slots")(), programs=section("Programs")())
    assert features_of(node) == [feature(name) for name in ("replay", "slots", "programs")]


def test_what_a_feature_lacks():
    with pytest.raises(NotImplementedError):
        feature("mx").part(None)
    assert list(feature("mx").schedules()) == []
    assert [kind.kind for name in FEATURES for kind in feature(name).schedules()] == [
        "side-by-side", "streaming", "program", "quorum"]
