"""Nodes with two ports: settings of their switches, and collectives in the resulting rings.

Example
-------
::

    grid = GridNodes(devices, rows=2, columns=4)
    grid.connect()
    plan = grid.grid.disable(Part.parse("card1")).plan(Shape.FLAT)  # an impossible plan is rejected here
    grid.switch(plan)
    ring = grid.ring()
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hdl.compression.registry import WEIGHT_CODECS
from hdl.config import NodeConfig
from hdl.control.protocol import EventStatus, Operation
from hdl.features.grid.switched_link import seats_layout
from hdl.group import GROUP
from host.driver.command import Command, Event
from host.driver.command_queueing import CommandQueueing, PendingCommand
from host.driver.device import Device
from host.driver.devices import TIMEOUT, Devices
from host.driver.diagnosis import RingError
from host.driver.errors import DeviceError
from host.driver.memory import Buffers, Where, place
from host.driver.node_operations import NodeOperations
from host.driver.results import Outcome, known, total
from host.driver.ring import ConnectedNodes, Ring
from host.driver.ring_collectives import WeightUpdates, outcome_of
from host.driver.ring_memory import RingMemory, RingPartition
from host.driver.ring_registers import RingSettings
from host.features.grid.grid import NodeSetting, Plan, Shape, Topology
from host.features.grid.owners import owners
from sim.golden.ring import block_indices

if TYPE_CHECKING:
    from host.transports.golden.nodes import GoldenNodes

__all__ = ["GoldenGrid", "GridCollectives", "GridNodes", "GridPartition", "GridRings", "broken_links",
           "check_formats", "link_name", "operand"]


def operand(setting: NodeSetting) -> int:
    """Encode a node's setting as the field ``gradient_base`` of SWITCH. A node listens on its receiving ports in
    rings of more than one node."""
    receives, sends, listens = [0, 1], [0, 1], 0
    for number, seat in enumerate(setting.seats):
        if seat is not None:
            receives[number], sends[number] = seat.receives, seat.sends
            listens |= (seat.size > 1) << seat.receives
    switch = {"sources": list(setting.outputs), "listens": listens}
    value = seats_layout().const({"switch": switch, "receives": receives, "sends": sends}).as_value().value
    return int(value)


def check_formats(plan: Plan, config: NodeConfig) -> None:
    """Raise ``ValueError`` if the nodes' formats do not allow two-dimensional sums: encoding new weights again in
    the second dimension must not change them, and gradients must be rounded in every ring."""
    if plan.shape is not Shape.GRID:
        return
    if config.adds_integers:
        raise ValueError(f"Gradients of rings in two dimensions must be in a format that is rounded in every ring, "
                         f"not {config.gradients}: take --shape {Shape.FLAT.value}")
    if not WEIGHT_CODECS[config.weights.codec].repeatable:
        raise ValueError(f"Weights of rings in two dimensions must be in a format that changes no number twice, not "
                         f"{config.weights.codec}: take --shape {Shape.FLAT.value}")


class GridNodes(ConnectedNodes):
    """All nodes of a grid, in order of number, whether or not they are in a ring. :mod:`host.features.grid.grid`
    defines the links."""

    def __init__(self, devices: Sequence[Device], *, rows: int, columns: int, timeout: int = TIMEOUT):
        self.grid = Topology(rows, columns)  # the whole grid, with all parts enabled
        if len(devices) != self.grid.nodes:
            raise ValueError(f"Devices of a {rows} x {columns} grid must be {self.grid.nodes}, not {len(devices)}")
        if any(device.config.topology.ports < 2 for device in devices):
            raise ValueError("Topology of nodes of a grid must be Grid()")
        super().__init__(devices, timeout=timeout)

    def switch(self, plan: Plan) -> None:
        """Set the switches of all nodes.

        All commands must have ended on all nodes, so that no packets are in transit between nodes. With replay, words
        may still be waiting for acknowledgement, and control words may be on the links, so the links are reset first.
        Raises ``RingError`` if a packet is still in transit at a node. That node's switch is then unchanged.
        """
        if len(plan.settings) != self.nodes:
            raise ValueError(f"Plan must be of the {self.nodes} nodes of this grid, not of {len(plan.settings)}")
        if self.config.link.replay and not any(device.read_fields("STATUS")["running"] for device in self.devices):
            self.recover()
        self.commands.run_apart({node: Command(operation=Operation.SWITCH, gradient_base=operand(setting))
                                 for node, setting in enumerate(plan.settings)})

    def ring(self, plan: Plan) -> Ring:
        """Create the driver for the flat ring that the switches are set to, and reset the ring's links."""
        if plan.shape is not Shape.FLAT:
            raise ValueError(f"Plan must be of one flat ring, not of shape {plan.shape.value}")
        ring = Ring([self.devices[node] for node in plan.order], timeout=self.devices.timeout)
        ring.connect()
        return ring

    def rings(self, plan: Plan) -> "GridRings":
        """Create the driver for the rings that the switches are set to, and reset their links."""
        rings = GridRings([self.devices[node] for node in plan.order], plan, timeout=self.devices.timeout)
        rings.connect()
        return rings


class GoldenGrid(GridNodes):
    """Golden nodes of a grid."""

    def __init__(self, golden: "GoldenNodes", devices: Sequence[Device], *, rows: int, columns: int):
        super().__init__(devices, rows=rows, columns=columns)
        self._golden = golden

    def switch(self, plan: Plan) -> None:
        super().switch(plan)
        rings: dict[int, list[Sequence[int]]] = {}
        for nodes in plan.rings:
            done = {node for row in rings.get(0, []) for node in row}
            port = 0 if plan.settings[nodes[0]].seats[0] is not None and not done.issuperset(nodes) else 1
            rings.setdefault(port, []).append(nodes)
        self._golden.rings = rings


class GridPartition(RingPartition):
    """Owners of vector elements in the rings of a plan: :func:`host.features.grid.owners.owners`."""

    def __init__(self, devices: Devices, plan: Plan):
        super().__init__(devices)
        self._plan = plan

    def check_root(self, root: int) -> None:
        """Raise ``ValueError``, since no single rank can own all groups in the rings of a plan."""
        raise ValueError(f"Groups must have their owners in the rings of a plan, not all be of rank {root}")

    def owned(self, length: int) -> list[npt.NDArray[np.int64]]:
        """Return the elements that each node owns, in the order of their state in memory."""
        owned = owners(self._plan, length)
        return [owned[node] for node in self._plan.active]


class GridCollectives(WeightUpdates):
    """Collectives on the nodes of a grid, in the rings of a plan."""

    def __init__(self, devices: Devices, plan: Plan, memory: RingMemory, settings: RingSettings,
                 commands: CommandQueueing):
        super().__init__(memory, settings, commands, devices.formats)
        self._devices = devices
        self._plan = plan
        self._seats = [plan.settings[node].seats for node in plan.active]

    def submit(self, operation: Operation, fields: Sequence[dict[str, int]], *,
               ring: int) -> PendingCommand[Outcome]:
        """Queue a collective on the rings of all rows (0, also for a flat ring) or of all columns (1). ``fields``
        contains the bases, length, block offset and stride for each node."""
        placed = []
        for seats, own in zip(self._seats, fields, strict=True):
            seat = seats[ring]
            if seat is None:
                raise ValueError(f"Ring must be one that all enabled nodes are in, not {ring}")
            placed.append({"port": ring, "rank": seat.rank, "size": seat.size, **own})
        return self._commands.submit_together(operation, outcome_of, placed,
                                              explain=lambda pending: self._explain(pending, ring))

    def _explain(self, pending: PendingCommand[Outcome], ring: int) -> RingError:
        """Wait until no more words move, and find out why a command failed. The cause is a rejection by a node or, if
        there is none, a link with missing packets, but never a node that is merely slow."""
        self._commands.settle(pending.every)
        name = f"{pending.operation.name.lower().replace('_', '-')} on rings {ring}"
        reason, cause = "nodes stood still, or gave no event", None
        lines = [f"  {device.name}: " + ("no event" if event is None else
                                         f"{event.status.name} after {event.cycles} cycles")
                 for device, event in zip(self._devices, pending.every, strict=True)]
        for number, event in enumerate(pending.every):
            if event is not None and event.status not in _BLAMELESS:
                cause = number
                try:
                    event.check(self._devices[number].name)
                except DeviceError as error:
                    reason = str(error)
                break
        else:
            order = self._plan.active
            events = {order[number]: event for number, event in enumerate(pending.every) if event is not None}
            links = broken_links(self._plan, events, ring=ring, timeout=self._devices.timeout)
            if links:
                reason = "; ".join(f"{link_name(self._plan, before, node, ring=ring)} {what}"
                                   for before, node, what in links)
            if len(links) == 1:
                cause = order.index(links[0][0])
        return RingError("\n".join([f"{name} failed: {reason}", *lines]), cause=cause, events=pending.every)

    def all_reduce(self, where: Buffers | int, *, ring: int) -> Outcome:
        """Replace each node's gradients by their sums over the nodes of its ring."""
        gradients = place(where, "gradients")
        fields = [{"gradient_base": gradients.base, "length": gradients.length} for _ in self._seats]
        return self.submit(Operation.ALL_REDUCE, fields, ring=ring).result()

    def submit_fused_update(self, where: Where) -> tuple[PendingCommand[Outcome], ...]:
        """Queue the three commands of a two-dimensional update: sums to the owners within rows, an update of each
        node's sums within columns, and new weights to all nodes within rows."""
        if self._plan.shape is not Shape.GRID:
            raise ValueError(f"Plan must be of rings in two dimensions, not of shape {self._plan.shape.value}")
        gradients, weights = place(where, "gradients"), place(where, "weights")
        state = place(where, "state").base if not isinstance(where, Buffers) or where.state is not None else 0
        length = weights.length
        columns = []
        for row, _ in self._seats:
            assert row is not None
            block = (row.rank + 1) % row.size
            count = len(block_indices(length, row.size)[block])
            first = GROUP * block if count else 0
            columns.append({"gradient_base": gradients.base + first, "weight_base": weights.base + first,
                            "state_base": state, "length": count, "stride": row.size})
        rows = [{"gradient_base": gradients.base, "length": length}] * len(self._seats)
        gather = [{"weight_base": weights.base, "length": length}] * len(self._seats)
        return (self.submit(Operation.REDUCE_SCATTER, rows, ring=0),
                self.submit(Operation.FUSED_UPDATE, columns, ring=1),
                self.submit(Operation.ALL_GATHER, gather, ring=0))

    def fused_update(self, where: Where) -> Outcome:
        """Update weights in two dimensions. The cycle count is the sum over the three commands."""
        outcomes: list[Outcome] = self._commands.wait(*self.submit_fused_update(where))
        return Outcome(cycles=total(outcome.cycles for outcome in outcomes),
                       local_nan=tuple(sorted({node for outcome in outcomes for node in outcome.local_nan})),
                       not_finite=tuple(sorted({node for outcome in outcomes for node in outcome.not_finite})))


def _in_flat_rings(what: str) -> property:
    """Create a property that raises ``ValueError``, for interfaces that require one flat ring."""
    def refuse(rings: "GridRings") -> None:
        raise ValueError(f"{what} nodes in one flat ring, not in rings of shape {rings.plan.shape.value}")

    return property(refuse)


class GridRings(ConnectedNodes):
    """Enabled nodes of a grid, in the rings of a plan.

    Vectors, state and master weights are written and read as in a ring; the rows of a vector are in node order.
    Programs, quorum updates, lists of layers and quantized inference require one flat ring. ``devices`` are the
    enabled nodes, in order of number.
    """

    def __init__(self, devices: Iterable[Device], plan: Plan, *, timeout: int = TIMEOUT):
        devices = list(devices)
        if len(devices) != len(plan.active):
            raise ValueError(f"Devices must be the {len(plan.active)} nodes of the plan, not {len(devices)}")
        for device in devices:
            check_formats(plan, device.config)
        super().__init__(devices, timeout=timeout)
        self.plan = plan  # the rings that the nodes form
        self.partition = GridPartition(self.devices, plan)
        self.memory = RingMemory(self.devices, self.partition)
        self.collectives = GridCollectives(self.devices, plan, self.memory, self.settings, self.commands)
        self.local = NodeOperations(self.devices, self.memory, self.settings, self.commands)

    programs: Any = _in_flat_rings("Programs must be of")
    quorum: Any = _in_flat_rings("Quorum updates must be of")
    microbatches: Any = _in_flat_rings("Microbatches must be of")
    inference: Any = _in_flat_rings("Quantized inference must be of")
    compute: Any = _in_flat_rings("Lists of layers must be for")


# Diagnosis.

_STANDSTILL = (EventStatus.INGRESS_TIMEOUT, EventStatus.EGRESS_TIMEOUT)
_BLAMELESS = (EventStatus.OK, EventStatus.PEER_ABORT, EventStatus.LINK_RESET, *_STANDSTILL)


def broken_links(plan: Plan, events: dict[int, Event], *, ring: int, timeout: int) -> list[tuple[int, int, str]]:
    """Find failed links: the grid nodes at both ends, and the packets that were not delivered.

    Words are counted per node, not per port, so the counts do not distinguish links. Events do: a node that is
    waiting for a packet has taken all packets that arrived, and its event contains their count. This node is the
    first to time out, so the other nodes have received its ABORT. An ABORT cannot cross a cut link, so the node after
    a cut link waits for TIMEOUT a second time.

    ``events`` is keyed by the number of a node in the grid; ``ring`` is the number of the collective's rings.
    """
    broken = []
    for members in _rings(plan, ring):
        ended = [known(events[node].cycles) for node in members if node in events]
        told = sum(node in events and events[node].status is EventStatus.PEER_ABORT for node in members)
        for rank, node in enumerate(members):
            before = members[rank - 1]
            event, other = events.get(node), events.get(before)
            if event is None or event.status is not EventStatus.INGRESS_TIMEOUT:
                continue
            missing = 0
            if other is not None and other.status in _STANDSTILL:
                missing = (other.detail - (event.detail >> 16)) % (1 << 16)
            waited_twice = known(event.cycles) - min(ended) > timeout // 2
            if 0 < missing < 1 << 15:
                broken.append((before, node, f"has not delivered {missing} packet{'s' if missing > 1 else ''}"))
            elif told == len(members) - 1 or waited_twice:
                broken.append((before, node, f"has not delivered what node {node} waited for"))
    return broken


def link_name(plan: Plan, before: int, node: int, *, ring: int) -> str:
    """Name a link by the ports at its ends."""
    source, target = (plan.settings[end].seats[ring] for end in (before, node))
    assert source is not None
    assert target is not None
    return f"the link from port {source.sends} of node {before} to port {target.receives} of node {node}"


def _rings(plan: Plan, ring: int) -> Sequence[tuple[int, ...]]:
    """Return the rings of a plan that run the commands with this value of ``ring``."""
    return [members for members in plan.rings if len(members) > 1 and all(
        seat is not None and (seat.rank, seat.size) == (rank, len(members))
        for rank, seat in enumerate(plan.settings[node].seats[ring] for node in members))]
