"""Cost of all-reduces in several formats, measured on a ring that other tests use too."""

import numpy as np

from hdl.config import NodeConfig
from host.labs.bench import sum_formats
from host.labs.bench.sum_formats import Cost
from sim.golden import ring as golden
from tests.host import rings


def test_measure():
    """Measured words equal the golden model's, and cycles exceed the payload."""
    nodes, length = 2, 2048
    with rings.open_nodes(nodes, config=NodeConfig()) as (ring, _):
        words, payload, cycles = sum_formats.measure(ring, length)
    values = sum_formats.gradients(nodes, length)
    traffic = golden.all_reduce(golden.bits(values), lanes=NodeConfig().lanes)[1]
    packets = 2 * (nodes - 1) * length // nodes // 256
    assert words == max(traffic.words)
    assert payload == words - 4 * packets == packets * 264
    assert words < cycles < 1.1 * words + 100


def test_table():
    table = sum_formats.table([("raw", Cost(words=1040, payload=1024, cycles=1092)),
                               ("sum16", Cost(words=540, payload=512, cycles=594))])
    assert table.headings == ["gradients", "words", "payload, relative to raw", "cycles", "cycles / words"]
    assert table.cells == [["raw", "1,040", "1.0000", "1,092", "1.050"], ["sum16", "540", "0.5000", "594", "1.100"]]


def test_gradients():
    """No gradient is zero, so that the number of words does not depend on the values."""
    assert np.count_nonzero(sum_formats.gradients(4, sum_formats.LENGTH)) == 4 * sum_formats.LENGTH
