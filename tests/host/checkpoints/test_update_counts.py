"""Nodes without a settable update count need extra broadcasts to catch up with a checkpoint."""

import pytest

from hdl.board import BOARDS
from hdl.config import NodeConfig
from hdl.features.settable_version.feature import SettableVersion
from host.checkpoints.device_frame import missing
from host.checkpoints.rejections import TooSmallError
from host.driver.device import Device
from tests.present import needs

needs("int16")


def counted(counts, *, config=None):
    """Nodes that start with the given update counts."""
    devices = []
    for count in counts:
        device = Device(None, config or NodeConfig())
        device.read_register = lambda name, count=count: {"WEIGHT_VERSION": count}[name]
        devices.append(device)
    return devices


@pytest.mark.parametrize(("versions", "counts", "expected"), [
    ((7, 9), (4, 6), 3), ((7, 7), (7, 7), 0), ((0, 0), (5, 6), 0), ((1, 1), ((1 << 32) - 1,) * 2, 2),
    ((65_536, 65_536), (0, 0), 65_536)])
def test_missing(versions, counts, expected):
    nodes = [{"rank": rank, "version": version} for rank, version in enumerate(versions)]
    assert missing(counted(counts), nodes) == expected
    assert missing(counted(counts, config=NodeConfig(features=(SettableVersion(),))), nodes) == 0


@pytest.mark.parametrize(("versions", "counts", "rank", "config"), [
    ((7, 9), (4, 5), 1, None), ((7, 7), (8, 8), 0, None), ((65_537, 65_537), (0, 0), 0, None),
    ((2, 2), (1, 1), 0, BOARDS["icebreaker"].node)])
def test_too_small(versions, counts, rank, config):
    """Nodes are rejected if their update counts lag by different amounts, are too high, or are far too low. Nodes
    that sum integers are rejected too, since they have no broadcast."""
    nodes = [{"rank": number, "version": version} for number, version in enumerate(versions)]
    with pytest.raises(TooSmallError, match=rf"^TOO_SMALL: node {rank} must have a WEIGHT_VERSION that can be "):
        missing(counted(counts, config=config), nodes)
