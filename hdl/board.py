# amaranth: UnusedElaboratable=no
"""Top level for all boards: a ring of nodes on one chip, with a serial link to the host."""

import dataclasses
from collections.abc import Mapping

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Configuration, Credits, Memories, NodeConfig, Optimizer, SingleRing
from hdl.config.forms import with_options
from hdl.feature import features_of
from hdl.node import Node
from hdl.registry import FEATURES, section
from hdl.ring.ports import joined, ports_of
from hdl.ring.topology import SMALL_RING, GridTopology, RingTopology
from hdl.serial.endpoint import check_sizes
from hdl.serial.link import SerialLink
from hdl.serial.uart import check_rates
from hdl.streams.stream import connect_stream

__all__ = ["BOARDS", "BoardConfig", "BoardTop", "node_of"]


def node_of(config):
    """Create the node for a configuration: a :class:`~hdl.node.Node`, or the class that a feature uses in its
    place."""
    classes = [feature.node() for feature in features_of(config)]
    return next((kind for kind in classes if kind is not None), Node)(config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoardConfig:
    """Configuration of a board, shared by the design and the host.

    Parameters
    ----------
    node : Configuration
        Configuration of every node.
    nodes : int
        Number of nodes in the ring on the chip: 1 to 16, and at most the node's ``topology.max_nodes``.
    clock, baud : int
        Clock frequency of the nodes in Hz and bit rate of the serial link; at least four cycles per bit.
    """

    node: Configuration
    nodes: int = 1
    clock: int
    baud: int = 3_000_000

    def __post_init__(self):
        self.node.check_ring(self.nodes)
        if self.nodes > SMALL_RING:
            raise ValueError(f"Board must have between 1 and {SMALL_RING} nodes, not {self.nodes}")
        check_rates(self.clock, self.baud)


#: Node that is quick to build and simulate: it trains the digits model without hidden layers, by SGD or momentum.
_SMALL = NodeConfig(
    lanes=1, segment=32, topology=SingleRing(max_nodes=4),
    memories=Memories(gradient=672, weight=672, state=672, planes=1), masking=False, sparsify=False,
    link=Credits(ingress=2))

#: Node with all update rules, for the digits model with at most a small hidden layer, on a chip with 24,288 LUTs.
_COMPACT = NodeConfig(
    topology=SingleRing(max_nodes=4), memories=Memories(gradient=2048, weight=2048, state=2048),
    optimizer=Optimizer(interval=8), masking=False, sparsify=False, link=Credits(ingress=2))


def _int16():
    """Node for 16-bit integers, with memories that fit an iCE40 UP."""
    return section("Int16Config")()


def _full(**options):
    """Node with all update rules, memories for the digits model with a hidden layer, and two-queue programs."""
    return with_options(_COMPACT, {"memories.gradient": 6144, "memories.weight": 6144, "memories.state": 4096,
                                   "programs": True, "stub": True} | options)


def _tenants():
    """The full node, shared by two users who do not trust each other."""
    return _full(features="tenants")


def _compute():
    """The full node with 16 multiply-adds per cycle instead of the compute stub.

    A single node has room for the state of all parameters, and its activation memory holds 36 examples of the digits
    model with a hidden layer of 64.
    """
    return _full(**{"memories.state": 6144, "stub": False, "compute.rows": 4, "compute.activations": 8192})


class _Boards(Mapping):
    """Board configurations, keyed by board name. A node's configuration is created when its board is looked up,
    because the node may need features that are absent from this copy of the repository."""

    def __init__(self, boards):
        self._boards = boards

    def __getitem__(self, name):
        node, features, options = self._boards[name]
        for feature in features:
            if feature not in FEATURES:
                raise ValueError(f"Board {name} needs feature {feature}, which is not in this copy: take another one")
        return BoardConfig(node=node() if callable(node) else node, **options)

    @property
    def present(self):
        """Names of the boards whose required features are all present in this copy of the repository."""
        return [name for name, (_, features, _) in self._boards.items() if all(map(FEATURES.__contains__, features))]

    def __iter__(self):
        return iter(self._boards)

    def __len__(self):
        return len(self._boards)


#: For each board, its node, the features that the node needs, and the options of :class:`BoardConfig`. Pins are
#: defined in boards/boards.py.
BOARDS = _Boards({
    "simulated": (_SMALL, (), {"nodes": 2, "clock": 12_000_000}),
    "ulx3s-85f": (_full, ("programs", "compute_stub"), {"nodes": 2, "clock": 62_500_000}),
    "ulx3s-85f-tenants": (_tenants, ("programs", "compute_stub", "tenants"), {"nodes": 2, "clock": 62_500_000}),
    "ulx3s-85f-compute": (_compute, ("programs", "compute"), {"clock": 62_500_000}),
    "ulx3s-25f": (_COMPACT, (), {"clock": 62_500_000}),
    "orangecrab-25f": (_COMPACT, (), {"clock": 60_000_000}),
    # The serial link shares its wires with an LED and a button, which slow down its signal edges.
    "colorlight-5a-75b": (_COMPACT, (), {"clock": 62_500_000, "baud": 1_000_000}),
    "icebreaker": (_int16, ("int16",), {"clock": 24_000_000}),
})


class BoardTop(wiring.Component):
    """One or more nodes in a ring or a grid, connected to the host by two wires.

    The nodes are numbered in the order of the ring or of :class:`~hdl.ring.topology.GridTopology`. Every link wire
    between two nodes has a register, so that the nodes can be placed far apart.

    Parameters
    ----------
    config : Configuration
        Configuration of every node.
    nodes : int
        Number of nodes, 1 to 16, and at most the configuration's ``topology.max_nodes``.
    clock, baud : int
        Clock frequency in Hz and bit rate in bits per second; at least four cycles per bit.
    buffer_words, frame_words : int
        See :class:`~hdl.serial.endpoint.Endpoint`.
    flash : int
        Minimum number of cycles for which a light stays on; with 1, the lights follow the signals directly.
    grid : tuple of int, optional
        Number of rows and columns of a grid of nodes with two ports; by default, the first ports form a ring.

    Members
    -------
    rx : In(1)
        Wire from the host.
    tx : Out(1)
        Wire to the host.
    lights : Out(4)
        Bit 0: a node has a request. Bit 1: bytes from the host. Bit 2: bytes to the host. Bit 3: words on the ring.
    busy : Out(1)
        A node has a request, or a frame is waiting to be sent. Used by simulations; ``flash`` does not lengthen it.
    """

    def __init__(self, *, config, nodes=1, clock, baud, buffer_words=512, frame_words=64, flash=1 << 20,
                 grid=None):
        config.check_ring(nodes)
        if grid is not None:
            rows, columns = grid
            topology = GridTopology(rows, columns)
            if topology.nodes != nodes:
                raise ValueError(f"Nodes of a {rows} x {columns} grid must be {topology.nodes}, not {nodes!r}")
            if config.topology.ports < 2:
                raise ValueError(f"Topology of nodes of a grid must be Grid(), not {config.topology!r}")
        self._wiring = ([((node, 0), (end, 0)) for node, end in RingTopology(nodes).links] if grid is None
                        else topology.wiring)
        if not isinstance(flash, int) or flash < 1:
            raise ValueError(f"Flash must be at least 1 cycle, not {flash!r}")
        self._config = config
        self._nodes = nodes
        self._flash = flash
        check_rates(clock, baud)
        check_sizes(nodes, buffer_words, frame_words)
        self._serial = {"clock": clock, "baud": baud, "buffer_words": buffer_words, "frame_words": frame_words}
        super().__init__({"rx": In(1, init=1), "tx": Out(1, init=1), "lights": Out(4), "busy": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.link = link = SerialLink(nodes=self._nodes, **self._serial)
        m.d.comb += [link.rx.eq(self.rx), self.tx.eq(link.tx), self.busy.eq(link.busy)]
        nodes = [node_of(self._config) for _ in range(self._nodes)]
        for n, node in enumerate(nodes):
            m.submodules[f"node_{n}"] = node
            connect_stream(m, getattr(link, f"to_node_{n}"), node.host_i)
            connect_stream(m, node.host_o, getattr(link, f"from_node_{n}"))
        ports = [ports_of(node) for node in nodes]
        for (source, leaving), (target, coming) in self._wiring:
            m.d.sync += joined(ports[source][leaving][1], ports[target][coming][0])
        words = Cat(successor.valid for node_ports in ports for _, successor in node_ports).any()
        shown = Cat(link.busy, link.receiving, link.sending, words)
        for light, signal in zip(self.lights, shown, strict=True):
            left = Signal(range(self._flash + 1), name="left")
            m.d.comb += light.eq(left != 0)
            with m.If(signal):
                m.d.sync += left.eq(self._flash)
            with m.Elif(left != 0):
                m.d.sync += left.eq(left - 1)
        return m
