"""Simulate Verilated nodes, of one or several kinds, in a ring or with any other wiring.

Example
-------
::

    library = build_ring(Node(NodeConfig()))
    with VerilatedRing(library, nodes=4, threads=2) as ring:
        ring.links[0].set_latency(data=100, credit=50)
        ring.send(0, packet)
        cycles = ring.run(10_000, until_packet_at=0)
        response = ring.receive(0)

    server = build_ring(Node(other))
    with VerilatedRing([library] * 3 + [server]) as ring:  # a library for each node
        ...
"""

import ctypes
import dataclasses
import hashlib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from hdl.control.registers import COUNTERS
from hdl.ring.topology import RingTopology
from sim.link_faults import RandomFaults
from sim.verilated.build import Library
from sim.verilated.exchange import Part
from sim.verilated.links import NEVER, End, LinkStatus, RingLink, Struct, check_wiring
from sim.verilated.ring_library import load

__all__ = ["NEVER", "LinkStatus", "NodeStatus", "RingLink", "VerilatedRing"]

_MAGIC = b"gradring state\n"

#: Approximate limit on the number of node cycles per library call. Signals are handled between calls.
_SLICE = 1 << 14
#: Default grid in cycles: a run that waits for a packet stops at a multiple of it (:meth:`VerilatedRing.set_grid`).
_GRID = 16


class _Memory(Struct):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("element", ctypes.c_uint32)]


@dataclasses.dataclass(frozen=True)
class NodeStatus:
    """Counters of a node's host port since reset, and numbers of queued words.

    Members
    -------
    input_words, input_packets : int
        Number queued by the host but not yet accepted by the node, including a partial packet.
    output_words, output_packets : int
        Number sent by the node but not yet received by the host, excluding a partial packet.
    words_taken, words_given : int
        Number of words that the node has accepted from and sent to the port.
    waits : int
        Number of cycles in which the node did not accept an offered word.
    last_taken, last_given : int
        Cycle of the last accepted and the last sent word, or 0 if there was none.
    """

    input_words: int
    input_packets: int
    output_words: int
    output_packets: int
    words_taken: int
    words_given: int
    waits: int
    last_taken: int
    last_given: int


class _NodeStatus(Struct):
    _fields_ = [(field.name, ctypes.c_uint64) for field in dataclasses.fields(NodeStatus)]


class _Closed(ctypes.CDLL):
    """Stands in for the library once the simulation is freed; any use raises an error."""

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise ValueError("Simulation must be used before it is closed")


class VerilatedRing:
    """Nodes in a ring, or with any other wiring, simulated cycle by cycle.

    Nodes start at cycle 0 in their configured state. The number of threads and the quantum never affect results.

    Parameters
    ----------
    library : Library or sequence of Library
        Library from :func:`~sim.verilated.build.build_ring`, or one per node if nodes differ. All must have the same
        number of ports, link wires, arithmetic and tracing.
    nodes : int, optional
        Number of nodes, 1 to 255 in a ring. Defaults to the number of libraries, or 4 for a single library.
    threads : int
        Number of threads that step the nodes, limited to one per node.
    wiring : sequence, optional
        Links, as the (node, port) that sends words and the (node, port) that receives them. A port without an
        incoming link receives no words, and words sent to a port without an outgoing link are lost. By default, port
        0 is connected to port 0 of the next node.
    part : Part, optional
        Nodes of this process, if the rest are in other processes: see :mod:`sim.verilated.parts`.

    Members
    -------
    nodes : int
        Number of nodes.
    here : range
        Nodes of this process; all if there is no part. Methods for single nodes work only for these.
    ports : int
        Number of ports of each node.
    replay : bool
        Whether links have the wires of replay.
    far_widths : tuple of int
        Number of elements in a row of each node's far memory; 0 without one.
    batched : bool
        Whether the nodes of one library on one thread are evaluated together, function by function.
    links : tuple of RingLink
        Links in the order of the wiring; by default, link k connects node k to its successor.
    spaces : tuple of int
        Number of memory spaces of each node that :meth:`memory` can access; 0 if its library has none.
    """

    def __init__(self, library: Library | Sequence[Library], *, nodes: int | None = None, threads: int = 1,
                 wiring: Sequence[tuple[End, End]] | None = None, part: Part | None = None) -> None:
        if isinstance(library, Library):
            nodes = 4 if nodes is None else nodes
            of_nodes = [library] * nodes
        else:
            of_nodes = list(library)
            nodes = len(of_nodes) if nodes is None else nodes
            if len(of_nodes) != nodes:
                raise ValueError(f"Libraries must be one for each of the {nodes} nodes, not {len(of_nodes)}")
        if wiring is None:
            wiring = [((source, 0), (target, 0)) for source, target in RingTopology(nodes).links]
        elif nodes < 1:
            raise ValueError(f"Node count must be at least 1, not {nodes!r}")
        self.nodes = nodes
        self.here = range(nodes) if part is None else part.nodes
        self._digest = _digest([lib.digest for lib in of_nodes])
        loaded = {lib.path: load(lib.path) for lib in of_nodes}
        self._library = loaded[of_nodes[0].path]
        _check_alike("kind of ports", [f"{lib.ring_ports()} with {'replay' if lib.ring_replay() else 'credits'}"
                                       for lib in loaded.values()])
        _check_alike("arithmetic", [lib.arithmetic.value for lib in of_nodes])
        _check_alike("kind of build", ["traced" if lib.traced else "untraced" for lib in of_nodes])
        self.ports: int = self._library.ring_ports()
        self.replay = bool(self._library.ring_replay())
        check_wiring(wiring, nodes=nodes, ports=self.ports)
        self.batched = all(lib.ring_batched() for lib in loaded.values())
        ends = [number for link in wiring for end in link for number in end]
        kinds = [loaded[lib.path].ring_kind() for lib in of_nodes]
        self._grid = _GRID
        self._ring = ctypes.c_void_p(self._library.ring_create(
            nodes, self._threads(threads), (ctypes.c_uint32 * len(ends))(*ends), len(wiring),
            (ctypes.c_void_p * nodes)(*kinds), None if part is None else ctypes.byref(part.structure)))
        if not self._ring:
            raise RuntimeError(f"The ring could not be created: {self._error()}")
        self.links = tuple(RingLink(self._library, self._ring, index, *link) for index, link in enumerate(wiring))
        self._far = [{number: words for number, words in enumerate(lib.memories) if isinstance(words, range)}
                     for lib in of_nodes]  # memories within the far memory
        known = (int(self._library.ring_memories(self._ring, node)) if node in self.here else 0
                 for node in range(nodes))
        self.spaces = tuple(count and count + len(far) for count, far in zip(known, self._far, strict=True))
        self.far_widths = tuple(int(self._library.ring_far(self._ring, node)) if node in self.here else 0
                                for node in range(nodes))

    def _threads(self, threads: int) -> int:
        if threads < 1:
            raise ValueError(f"Thread count must be at least 1, not {threads!r}")
        return min(threads, len(self.here))

    def _error(self) -> str:
        message: bytes = self._library.ring_error()
        return message.decode()

    def _check_node(self, node: int) -> None:
        if not 0 <= node < self.nodes:
            raise ValueError(f"Node must be between 0 and {self.nodes - 1}, not {node!r}")
        if node not in self.here:
            raise ValueError(f"Node must be one of this process, {self.here[0]} to {self.here[-1]}, not {node!r}")

    def _check_far(self, node: int) -> None:
        self._check_node(node)
        if not self.far_widths[node]:
            raise ValueError(f"Node {node} must have a far memory")

    def _checked(self, result: int) -> int:
        if result < 0:
            raise RuntimeError(f"Simulation failed: {self._error()}")
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free the simulation. After this, all other methods raise ``ValueError``."""
        if self._ring:
            self._library.ring_destroy(self._ring)
            self._ring.value = None
            self._library = _Closed()
            for link in self.links:
                link._library = self._library

    @property
    def cycle(self) -> int:
        """Number of cycles since reset."""
        result: int = self._library.ring_cycle(self._ring)
        return result

    def reset(self) -> None:
        """Restart at cycle 0, with all nodes and memories in their configured state. Words that are queued or in
        flight are dropped.

        Links keep their latency, rate and cut state.
        """
        self._library.ring_reset(self._ring)

    def set_threads(self, threads: int) -> None:
        """Set the number of threads that step the nodes."""
        self._library.ring_set_threads(self._ring, self._threads(threads))

    def set_quantum(self, cycles: int) -> None:
        """Let nodes run up to ``cycles`` cycles ahead of each other, if the grid and the latencies permit."""
        if cycles < 1:
            raise ValueError(f"Quantum must be at least 1 cycle, not {cycles!r}")
        self._library.ring_set_quantum(self._ring, cycles)

    def set_grid(self, cycles: int) -> None:
        """Set the grid: a run that waits for a packet stops at a multiple of ``cycles`` cycles (16 by default).

        The grid limits the quantum: with a larger grid, nodes can run further ahead of each other, if latencies
        permit.
        """
        if not 1 <= cycles < 1 << 32:
            raise ValueError(f"Grid must be between 1 and 4294967295 cycles, not {cycles!r}")
        self._grid = cycles
        self._library.ring_set_grid(self._ring, cycles)

    def set_faults(self, faults: RandomFaults | None) -> None:
        """Enable random faults on all links; a reset does not disable them."""
        for link in self.links:
            link.set_faults(faults)

    def run(self, cycles: int, *, until_packet_at: int | None = None) -> int:
        """Run for some cycles, or until a node has sent a packet, and return the number of cycles.

        The library runs in slices that end at multiples of the grid and have no effect on the simulation. Python
        handles signals between slices.

        Parameters
        ----------
        cycles : int
            Maximum number of cycles to run.
        until_packet_at : int or None
            Stop when this node has sent a complete packet: immediately if there already is one, otherwise at a
            multiple of the grid.
        """
        if cycles < 0:
            raise ValueError(f"Cycle count must not be negative, not {cycles!r}")
        if until_packet_at is not None and not 0 <= until_packet_at < self.nodes:
            raise ValueError(f"Node must be between 0 and {self.nodes - 1}, not {until_packet_at!r}")
        node = -1 if until_packet_at is None else until_packet_at
        size = max(1, _SLICE // self.nodes // self._grid) * self._grid
        taken = 0
        while True:
            part = min(cycles - taken, size - self.cycle % size)
            done = self._checked(self._library.ring_run(self._ring, part, node))
            taken += done
            if done < part or taken == cycles:
                return taken

    def send(self, node: int, words: Any) -> None:
        """Queue a packet of at least one word for a node, and mark its last word."""
        self._check_node(node)
        packet = np.ascontiguousarray(words, dtype=np.uint32)
        if packet.ndim != 1 or not packet.size:
            raise ValueError(f"Packet must be one sequence of at least one word, not of shape {packet.shape!r}")
        self._library.ring_send(self._ring, node, packet.ctypes.data, packet.size)

    def receive(self, node: int) -> np.ndarray | None:
        """Return the next packet from a node as uint32, or None if no packet is complete."""
        self._check_node(node)
        length = self._library.ring_packet_length(self._ring, node)
        if length < 0:
            return None
        packet = np.empty(length, np.uint32)
        self._library.ring_receive(self._ring, node, packet.ctypes.data)
        return packet

    def status(self, node: int) -> NodeStatus:
        """Counters of a node's host port, and numbers of words queued there."""
        self._check_node(node)
        result = _NodeStatus()
        self._library.ring_node_status(self._ring, node, ctypes.byref(result))
        return NodeStatus(**result.values())

    def memory(self, node: int, space: int) -> np.ndarray:
        """View of the elements in a node's memory, as uint32 or, for 16-bit integers, uint16.

        Values written to the array are in the memory immediately. Do not use the array after :meth:`close`. In a
        space of the far memory, a row may arrive a few cycles after the end of the command that wrote it.
        """
        self._check_node(node)
        if not 0 <= space < self.spaces[node]:
            raise ValueError(f"Memory space must be one of the {self.spaces[node]} that the library knows, not "
                             f"{space!r}")
        far = self._far[node]
        if space in far:
            words = far[space]
            return self.far_memory(node)[0][words.start:words.stop]
        memory = _Memory()
        inside = space - sum(number < space for number in far)
        self._library.ring_memory(self._ring, node, inside, ctypes.byref(memory))
        content = (ctypes.c_uint8 * memory.bytes).from_address(memory.data)
        return np.frombuffer(content, {2: np.uint16, 4: np.uint32}[memory.element])

    def owners(self, node: int) -> np.ndarray:
        """View of the buffer tags of a node's activation rows, as uint8. Empty if the library has no tags."""
        self._check_node(node)
        memory = _Memory()
        self._library.ring_owners(self._ring, node, ctypes.byref(memory))
        if not memory.bytes:
            return np.zeros(0, np.uint8)
        return np.frombuffer((ctypes.c_uint8 * memory.bytes).from_address(memory.data), np.uint8)

    def set_far_speed(self, *, latency: int, rate: Fraction | float = 1, node: int | None = None) -> None:
        """Set the latency and rate of the far memory of one node or of all nodes.

        Parameters
        ----------
        latency : int
            Latency in cycles from requesting a row to the answer; at least 1, initially 16.
        rate : Fraction or float
            Words per cycle, counting reads and writes together; initially 1. With 0, the memory does not answer.
        node : int, optional
        """
        nodes = [number for number, width in enumerate(self.far_widths) if width]
        if node is not None:
            self._check_far(node)
            nodes = [node]
        if not nodes:
            raise ValueError("Nodes must have far memories")
        share, most = Fraction(rate).limit_denominator(1 << 16), min(self.far_widths[number] for number in nodes)
        if not 1 <= latency < 1 << 32:
            raise ValueError(f"Latency of a far memory must be at least 1 cycle, not {latency!r}")
        if not 0 <= share <= most:
            raise ValueError(f"Rate of a far memory must be between 0 and {most} words per cycle, not {rate!r}")
        for number in nodes:
            self._far_speed(number, latency, share)

    def _far_speed(self, node: int, latency: int, rate: Fraction) -> None:
        self._library.ring_far_speed(self._ring, node, latency, rate.numerator, rate.denominator)

    def far_memory(self, node: int) -> tuple[np.ndarray, int, int]:
        """View of a node's far memory as uint32, and number of words read and written since reset.

        Do not use the array after :meth:`close`.
        """
        self._check_far(node)
        memory, words = _Memory(), (ctypes.c_uint64 * 2)()
        self._library.ring_far_memory(self._ring, node, ctypes.byref(memory), words)
        content = (ctypes.c_uint8 * memory.bytes).from_address(memory.data)
        return np.frombuffer(content, np.uint32), words[0], words[1]

    def counters(self, node: int) -> np.ndarray | None:
        """Current counters of a node as uint32, in register order.

        Returns None if the library has no counters or they are being cleared.
        """
        self._check_node(node)
        values = np.empty(len(COUNTERS), np.uint32)
        return values if self._library.ring_counters(self._ring, node, values.ctypes.data) else None

    def describe(self) -> str:
        """Describe queues and links, one per line, to show what the ring is waiting for."""
        lines = [f"cycle {self.cycle}"]
        for node in range(self.nodes):
            n = self.status(node)
            lines.append(
                f"node {node}: {n.input_words} words of {n.input_packets} packets wait to go in, {n.output_words} "
                f"words of {n.output_packets} whole packets have come out; {n.words_taken} taken (last in cycle "
                f"{n.last_taken}), {n.words_given} given (last in cycle {n.last_given}), "
                f"refused for {n.waits} cycles")
        lines += [link.describe(self.cycle) for link in self.links]
        return "\n".join(lines)

    def save(self) -> bytes:
        """Save the complete state (nodes, links and their settings, queues, cycle), except waveforms."""
        state = np.empty(self._checked(self._library.ring_save(self._ring)), np.uint8)
        self._library.ring_saved(self._ring, state.ctypes.data)
        return self.header + state.tobytes()

    def restore(self, state: bytes) -> None:
        """Restore a state saved from this ring, or from another ring with the same library and size."""
        header = self.header
        if not state.startswith(header):
            raise ValueError("State must be one saved from a ring of the same library and size")
        body = np.frombuffer(state, np.uint8, offset=len(header))
        self._checked(self._library.ring_restore(self._ring, body.ctypes.data, body.size))

    @property
    def header(self) -> bytes:
        """Header of a saved state: library, number of nodes, and wiring."""
        wiring = hashlib.sha256(repr([(link.source, link.target) for link in self.links]).encode()).hexdigest()[:16]
        return _MAGIC + f"{self._digest} {self.nodes} {wiring}\n".encode()

    def start_wave(self, path: Path) -> None:
        """Start writing all signals of all nodes to an FST file. Requires a traced library."""
        with path.open("wb"):
            pass  # the FST writer does not report unwritable paths
        self._checked(self._library.ring_wave_open(self._ring, str(path).encode()))

    def stop_wave(self) -> None:
        """Finish the waveform file."""
        self._checked(self._library.ring_wave_close(self._ring))


def _check_alike(what: str, values: Sequence[object]) -> None:
    """Raise ValueError if nodes differ in a property that all nodes of a ring must have in common."""
    if len(different := dict.fromkeys(values)) > 1:
        raise ValueError(f"Nodes of a ring must have one {what}, not {' and '.join(map(str, different))}")


def _digest(digests: Sequence[str]) -> str:
    """Digest of all nodes' libraries, or of the only library."""
    return digests[0] if len(set(digests)) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()
