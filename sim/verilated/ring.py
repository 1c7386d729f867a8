"""Ring of Verilated nodes.

Example
-------
::

    library = build_ring(Node(NodeConfig()))
    with VerilatedRing(library, nodes=4, threads=2) as ring:
        ring.links[0].set_latency(data=100, credit=50)
        ring.send(0, packet)
        cycles = ring.run(10_000, until_packet_at=0)
        response = ring.receive(0)
"""

import ctypes
import dataclasses
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from hdl.control.registers import COUNTERS
from hdl.ring.topology import RingTopology
from sim.verilated.build import Library

__all__ = ["NEVER", "LinkStatus", "NodeStatus", "RingLink", "VerilatedRing"]

#: A cycle that no simulation reaches.
NEVER = (1 << 64) - 1

_MAGIC = b"gradring state\n"


class _Struct(ctypes.Structure):
    def values(self) -> dict[str, int]:
        return {field[0]: getattr(self, field[0]) for field in self._fields_}


class _NodeStatus(_Struct):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "input_words", "input_packets", "output_words", "output_packets", "words_taken", "words_given", "waits",
        "last_taken", "last_given")]


class _Memory(_Struct):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("element", ctypes.c_uint32)]


class _LinkStatus(_Struct):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in (
            "data_latency", "credit_latency", "rate_numerator", "rate_denominator")),
        *((name, ctypes.c_uint64) for name in (
            "cut_from", "cut_until", "words_carried", "words_dropped", "words_corrupted", "words_in_flight",
            "credits_carried", "credits_dropped", "credits_in_flight", "last_word", "last_credit")),
    ]


@dataclasses.dataclass(frozen=True)
class NodeStatus:
    """Counters of one node's host port since reset, and the words that it holds.

    Members
    -------
    input_words, input_packets : int
        Queued by the host and not yet taken by the node; a packet under way counts.
    output_words, output_packets : int
        Given by the node and not yet received by the host; a packet under way does not count.
    words_taken, words_given : int
        Words through the port.
    waits : int
        Cycles in which the node refused a word.
    last_taken, last_given : int
        Cycles of the last words; 0 if there were none.
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


@dataclasses.dataclass(frozen=True)
class LinkStatus:
    """Settings of one link, its counters since reset, and the words on their way.

    Members
    -------
    data_latency, credit_latency : int
        Cycles from one end to the other.
    rate_numerator, rate_denominator : int
        Words per cycle.
    cut_from, cut_until : int
        Cycles in which all that enters is lost: from the first and before the second.
    words_carried, words_dropped, words_corrupted : int
        Words that entered and were kept, those that were lost, and those among the kept that were changed.
    credits_carried, credits_dropped : int
        Credits likewise.
    words_in_flight, credits_in_flight : int
        Entered, and not yet arrived.
    last_word, last_credit : int
        Cycles in which the last ones entered; 0 where there were none.
    """

    data_latency: int
    credit_latency: int
    rate_numerator: int
    rate_denominator: int
    cut_from: int
    cut_until: int
    words_carried: int
    words_dropped: int
    words_corrupted: int
    words_in_flight: int
    credits_carried: int
    credits_dropped: int
    credits_in_flight: int
    last_word: int
    last_credit: int


class _Closed(ctypes.CDLL):
    """Stands for the library once the simulation is freed."""

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise ValueError("Simulation must be used before it is closed")


class RingLink:
    """The link from one node to the next: words forward, credits backward.

    A word on the sender's wires in cycle t is on the receiver's in cycle t + latency. Settings change between runs
    and act on words that enter from then on; none overtakes another.
    """

    def __init__(self, library: ctypes.CDLL, ring: ctypes.c_void_p, index: int) -> None:
        self._library = library
        self._ring = ring
        self.index = index

    def set_latency(self, *, data: int | None = None, credit: int | None = None) -> None:
        """Cycles that words and credits take, each at least 1; 16 after creation."""
        status = self.status()
        data = status.data_latency if data is None else data
        credit = status.credit_latency if credit is None else credit
        for kind, latency in (("Data", data), ("Credit", credit)):
            if not 1 <= latency < 1 << 32:
                raise ValueError(f"{kind} latency must be between 1 and 4294967295 cycles, not {latency!r}")
        self._library.ring_link_latency(self._ring, self.index, data, credit)

    def set_rate(self, numerator: int, denominator: int) -> None:
        """Words per cycle, as a fraction of at most 1. Words that come faster are delayed, in order."""
        if not 1 <= numerator <= denominator < 1 << 16:
            raise ValueError(f"Rate must be a fraction above 0 and at most 1, not {numerator!r}/{denominator!r}")
        self._library.ring_link_rate(self._ring, self.index, numerator, denominator)

    def cut(self, start: int | None = None, stop: int = NEVER) -> None:
        """Lose all words and credits that enter in cycles from ``start``, by default now, and before ``stop``.

        Words that have entered before still arrive. A link has one cut at a time.
        """
        start = self._library.ring_cycle(self._ring) if start is None else start
        if not 0 <= start <= stop <= NEVER:
            raise ValueError(f"A cut must be of cycles in ascending order, not from {start!r} to {stop!r}")
        self._library.ring_link_cut(self._ring, self.index, start, stop)

    def mend(self) -> None:
        """End a cut."""
        self._library.ring_link_cut(self._ring, self.index, NEVER, NEVER)

    def corrupt(self, *, word: int, bit: int) -> None:
        """Flip a bit of a word to come, by its number since reset: 0 to 31 of its data, or 32, which is last."""
        status = self.status()
        sent = status.words_carried + status.words_dropped
        if not sent <= word <= NEVER:
            raise ValueError(f"Word to corrupt must be one of those to come, from {sent}, not {word!r}")
        if not 0 <= bit <= 32:
            raise ValueError(f"Bit to corrupt must be between 0 and 32, not {bit!r}")
        self._library.ring_link_corrupt(self._ring, self.index, word, 1 << bit)

    def status(self) -> LinkStatus:
        """Settings, counters and the words on their way."""
        result = _LinkStatus()
        self._library.ring_link_status(self._ring, self.index, ctypes.byref(result))
        return LinkStatus(**result.values())


class VerilatedRing:
    """Nodes in a ring, simulated cycle by cycle.

    The nodes start in cycle 0, as configured. All threads and quanta give the same cycles.

    Parameters
    ----------
    library : Library
        Library that :func:`~sim.verilated.build.build_ring` has built.
    nodes : int
        Ring size, 1 to 16.
    threads : int
        Threads that step the nodes, at most one per node: more are not started.

    Members
    -------
    nodes : int
        Ring size.
    topology : RingTopology
        Neighbours of each node.
    batched : bool
        Whether the nodes of a thread are evaluated together, function by function.
    links : tuple of RingLink
        Link k leads from node k to its successor.
    memories : int
        Memory spaces of each node that :meth:`memory` reaches; 0 where the library knows none.
    """

    def __init__(self, library: Library, *, nodes: int = 4, threads: int = 1) -> None:
        self.topology = RingTopology(nodes)
        self.nodes = nodes
        self._digest = library.digest
        self._library = _load(library.path)
        self.batched = bool(self._library.ring_batched())
        self._ring = ctypes.c_void_p(self._library.ring_create(
            nodes, self._threads(threads), (ctypes.c_uint32 * nodes)(*self.topology.incoming)))
        if not self._ring:
            raise RuntimeError(f"The ring could not be created: {self._error()}")
        self.links = tuple(RingLink(self._library, self._ring, index) for index in range(nodes))
        self.memories: int = self._library.ring_memories(self._ring)

    def _threads(self, threads: int) -> int:
        if threads < 1:
            raise ValueError(f"Thread count must be at least 1, not {threads!r}")
        return min(threads, self.nodes)

    def _error(self) -> str:
        message: bytes = self._library.ring_error()
        return message.decode()

    def _check_node(self, node: int) -> None:
        if not 0 <= node < self.nodes:
            raise ValueError(f"Node must be between 0 and {self.nodes - 1}, not {node!r}")

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
        """Free the simulation. Anything but this method raises ``ValueError`` afterwards."""
        if self._ring:
            self._library.ring_destroy(self._ring)
            self._ring.value = None
            self._library = _Closed()
            for link in self.links:
                link._library = self._library

    @property
    def cycle(self) -> int:
        """Cycles since reset."""
        result: int = self._library.ring_cycle(self._ring)
        return result

    def reset(self) -> None:
        """Start again at cycle 0 with all nodes as configured, memories included; drop words that are queued or on
        their way.

        Links keep latency, rate and cut.
        """
        self._library.ring_reset(self._ring)

    def set_threads(self, threads: int) -> None:
        """Step the nodes by another number of threads."""
        self._library.ring_set_threads(self._ring, self._threads(threads))

    def set_quantum(self, cycles: int) -> None:
        """Let nodes run ahead of each other by at most ``cycles`` cycles, where the smallest latency allows it."""
        if cycles < 1:
            raise ValueError(f"Quantum must be at least 1 cycle, not {cycles!r}")
        self._library.ring_set_quantum(self._ring, cycles)

    def run(self, cycles: int, *, until_packet_at: int | None = None) -> int:
        """Run for some cycles, or until there is a packet from a node; return how many cycles it took.

        Parameters
        ----------
        cycles : int
            Most cycles to run.
        until_packet_at : int or None
            Stop when this node has given a whole packet: at once if there is one, else at a multiple of 16 cycles.
        """
        if cycles < 0:
            raise ValueError(f"Cycle count must not be negative, not {cycles!r}")
        if until_packet_at is not None:
            self._check_node(until_packet_at)
        node = -1 if until_packet_at is None else until_packet_at
        return self._checked(self._library.ring_run(self._ring, cycles, node))

    def send(self, node: int, words: Any) -> None:
        """Queue one packet of at least one word for a node; its last word is the one marked so."""
        self._check_node(node)
        packet = np.ascontiguousarray(words, dtype=np.uint32)
        if packet.ndim != 1 or not packet.size:
            raise ValueError(f"Packet must be one sequence of at least one word, not of shape {packet.shape!r}")
        self._library.ring_send(self._ring, node, packet.ctypes.data, packet.size)

    def receive(self, node: int) -> np.ndarray | None:
        """Take the next packet from a node as uint32; None if no whole one is there."""
        self._check_node(node)
        length = self._library.ring_packet_length(self._ring, node)
        if length < 0:
            return None
        packet = np.empty(length, np.uint32)
        self._library.ring_receive(self._ring, node, packet.ctypes.data)
        return packet

    def status(self, node: int) -> NodeStatus:
        """Counters of a node's host port, and the words queued there."""
        self._check_node(node)
        result = _NodeStatus()
        self._library.ring_node_status(self._ring, node, ctypes.byref(result))
        return NodeStatus(**result.values())

    def memory(self, node: int, space: int) -> np.ndarray:
        """View of the present elements of a node's memory, as uint32 or, for 16-bit integers, uint16.

        A value written to the array is in the memory at once. The array must not be used after :meth:`close`.
        """
        self._check_node(node)
        if not 0 <= space < self.memories:
            raise ValueError(f"Memory space must be one of the {self.memories} that the library knows, not {space!r}")
        memory = _Memory()
        self._library.ring_memory(self._ring, node, space, ctypes.byref(memory))
        content = (ctypes.c_uint8 * memory.bytes).from_address(memory.data)
        return np.frombuffer(content, {2: np.uint16, 4: np.uint32}[memory.element])

    def counters(self, node: int) -> np.ndarray | None:
        """Present counters of a node, in the order of their registers, as uint32.

        None if the library does not know them, and while they are cleared.
        """
        self._check_node(node)
        values = np.empty(len(COUNTERS), np.uint32)
        return values if self._library.ring_counters(self._ring, node, values.ctypes.data) else None

    def describe(self) -> str:
        """Describe queues and links, one line each, which shows who waits for whom."""
        lines = [f"cycle {self.cycle}"]
        for node in range(self.nodes):
            n = self.status(node)
            lines.append(
                f"node {node}: {n.input_words} words of {n.input_packets} packets wait to go in, {n.output_words} "
                f"words of {n.output_packets} whole packets have come out; {n.words_taken} taken (last in cycle "
                f"{n.last_taken}), {n.words_given} given (last in cycle {n.last_given}), "
                f"refused for {n.waits} cycles")
        for link in self.links:
            k = link.status()
            cut = k.cut_from <= self.cycle < k.cut_until
            lines.append(
                f"link {link.index} -> {self.topology.successor(link.index)}{' (CUT)' if cut else ''}: "
                f"{k.words_in_flight} words in flight, {k.words_carried} carried, {k.words_dropped} lost "
                f"(last in cycle {k.last_word}); {k.credits_in_flight} credits in flight, {k.credits_carried} "
                f"carried, {k.credits_dropped} lost (last in cycle {k.last_credit})")
        return "\n".join(lines)

    def save(self) -> bytes:
        """Save the whole state: nodes, links and their settings, queues, cycle. Only waveforms are not part of it."""
        state = np.empty(self._checked(self._library.ring_save(self._ring)), np.uint8)
        self._library.ring_saved(self._ring, state.ctypes.data)
        return self.header + state.tobytes()

    def restore(self, state: bytes) -> None:
        """Go on from a saved state, of this ring or of another of the same library and size."""
        header = self.header
        if not state.startswith(header):
            raise ValueError("State must be one saved from a ring of the same library and size")
        body = np.frombuffer(state, np.uint8, offset=len(header))
        self._checked(self._library.ring_restore(self._ring, body.ctypes.data, body.size))

    @property
    def header(self) -> bytes:
        """Header of a saved state: the library and the number of nodes that it belongs to."""
        return _MAGIC + f"{self._digest} {self.nodes}\n".encode()

    def start_wave(self, path: Path) -> None:
        """Write all signals of all nodes to an FST file from here on; needs a traced library."""
        with path.open("wb"):
            pass  # the FST writer says nothing about a path that cannot be written
        self._checked(self._library.ring_wave_open(self._ring, str(path).encode()))

    def stop_wave(self) -> None:
        """Finish the waveform."""
        self._checked(self._library.ring_wave_close(self._ring))


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    ring, node, words = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p
    u32, u64, i32, i64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64
    functions: dict[str, tuple[Any, list[Any]]] = {
        "error": (ctypes.c_char_p, []),
        "create": (ring, [u32, u32, words]),
        "destroy": (None, [ring]),
        "reset": (None, [ring]),
        "set_threads": (None, [ring, u32]),
        "set_quantum": (None, [ring, u32]),
        "cycle": (u64, [ring]),
        "run": (i64, [ring, u64, i32]),
        "send": (None, [ring, node, words, u64]),
        "packet_length": (i64, [ring, node]),
        "receive": (None, [ring, node, words]),
        "node_status": (None, [ring, node, ctypes.c_void_p]),
        "memories": (u32, [ring]),
        "memory": (None, [ring, node, u32, ctypes.c_void_p]),
        "counters": (i32, [ring, node, words]),
        "link_latency": (None, [ring, u32, u32, u32]),
        "link_rate": (None, [ring, u32, u32, u32]),
        "link_cut": (None, [ring, u32, u64, u64]),
        "link_corrupt": (None, [ring, u32, u64, u64]),
        "link_status": (None, [ring, u32, ctypes.c_void_p]),
        "save": (i64, [ring]),
        "saved": (None, [ring, words]),
        "restore": (i64, [ring, words, u64]),
        "wave_open": (i64, [ring, ctypes.c_char_p]),
        "wave_close": (i64, [ring]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, f"ring_{name}")
        function.restype = result
        function.argtypes = arguments
    return library
