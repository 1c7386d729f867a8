"""Transfer times computed by hand. tests/host/transports/test_backdoor.py compares the model with nodes."""

import pytest

from hdl.config import NodeConfig
from hdl.features.int16.feature import Int16Config
from sim.golden.host_port import PortModel

FULL = NodeConfig()
REDUCED = Int16Config()


@pytest.mark.parametrize(("config", "address", "read", "write"), [
    (FULL, 0, 112, 111), (FULL, 3, 115, 111), (FULL, 4, 112, 111), (NodeConfig(lanes=8), 7, 119, 111),
    (NodeConfig(lanes=1), 7, 112, 111), (REDUCED, 0, 306, 109), (REDUCED, 5, 306, 109),
])
def test_alone(config, address, read, write):
    assert PortModel(config).read(1000, address, 100) == 1000 + read
    assert PortModel(config).write(1000, 100) == 1000 + write


def test_one_behind_the_other():
    """With all features, a node buffers one word of the next request and the last word of the response."""
    port = PortModel(FULL)
    assert [port.write(0, 5), port.read(0, 2, 3), port.write(0, 1), port.write(200, 1)] == [16, 32, 43, 212]
    port = PortModel(REDUCED)
    assert [port.write(0, 5), port.read(0, 2, 3), port.write(0, 1), port.write(200, 1)] == [14, 30, 41, 210]


@pytest.mark.parametrize(("config", "ends"), [
    (FULL, [18, 18, 18, 22, 22, 22, 22, 26]), (REDUCED, [17, 17, 17, 17, 21, 21, 21, 21])])
def test_registers(config, ends):
    """The port visits a register every four cycles. The first read uses the next visit, and each later read every
    second visit."""
    assert [PortModel(config).read_registers(cycle, 1) for cycle in range(8)] == ends
    assert [PortModel(config).read_registers(cycle, 23) for cycle in range(8)] == [end + 8 * 22 for end in ends]
