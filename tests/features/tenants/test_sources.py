"""Test tenant, windows and deadlines as register sources, hdl/features/tenants/sources.py."""

import dataclasses

import pytest

from hdl.config import NodeConfig
from hdl.control.engine import check_engines
from hdl.features.tenants.feature import Tenants
from hdl.features.tenants.sources import Cut, Tenant, Window
from tests.hdl import fill
from tests.refusals import refuses

CONFIG = NodeConfig(features=(Tenants(),))


def described(config, source):
    return [dataclasses.replace(fill.describe(config), inputs={"number": source})]


@pytest.mark.parametrize("source", [Tenant(), Cut(), Window("weights")])
def test_sources(source):
    """Engine inputs for the tenant, its windows and deadlines exist only on nodes with tenants."""
    check_engines(described(CONFIG, source), CONFIG)
    refuses("Input number of engine filler needs a node with tenants", check_engines,
            described(NodeConfig(), source), NodeConfig())


def test_window():
    names = ", ".join(space.name for space in CONFIG.memory_map if space.name != "trace")
    refuses(f"Input number of engine filler must be the window of one of {names}, not 'trace'", check_engines,
            described(CONFIG, Window("trace")), CONFIG)
