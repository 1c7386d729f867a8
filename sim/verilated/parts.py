"""Ring with nodes in several processes that behaves like a ring in a single process.

Process 0 holds the ring object that the host uses. The other processes serve process 0: they repeat changes to links,
run when process 0 runs, and pass words to and from their own nodes. All cycles, words and counters are the same as in
a single process.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np

from sim.verilated.build import Library
from sim.verilated.exchange import Exchange, Part
from sim.verilated.links import End, InjectedFaults, LinkStatus, RingLink
from sim.verilated.part_server import Call, Failure, Processes, Setup
from sim.verilated.ring import NodeStatus, VerilatedRing
from sim.verilated.toolchain import ToolError

__all__ = ["Contents", "PartedRing", "ProcessEndedError", "bounds"]


def bounds(nodes: int, processes: int) -> tuple[int, ...]:
    """First node of each process, followed by the total number of nodes; nodes are divided as equally as possible."""
    if not 1 <= processes <= nodes:
        raise ValueError(f"Processes must be between 1 and {nodes}, the number of nodes, not {processes!r}")
    return tuple(nodes * process // processes for process in range(processes + 1))


class ProcessEndedError(ToolError):
    """Raised when a process that simulates part of the ring has ended."""


class Contents:
    """Array of a node in another process; slices are read as copies."""

    def __init__(self, ring: "PartedRing", process: int, method: str, arguments: tuple[int, ...]) -> None:
        self._ring, self._process, self._of = ring, process, (method, arguments)
        self.size, self.dtype = ring.ask(process, "form", *self._of)

    def __getitem__(self, part: slice) -> np.ndarray:
        result: np.ndarray = self._ring.ask(self._process, "read", *self._of, part)
        return result

    def __setitem__(self, part: slice, values: Any) -> None:
        self._ring.tell(self._process, "write", *self._of, part, values)


class _PartedLink(RingLink):
    """Link with ends that may be in different processes; all processes keep its settings."""

    def __init__(self, parted: "PartedRing", *arguments: Any) -> None:
        super().__init__(*arguments)
        self._parted = parted

    def _everywhere(self, method: str, *arguments: Any, **keywords: Any) -> None:
        getattr(super(), method)(*arguments, **keywords)
        self._parted.tell_others(method, *arguments, link=self.index, **keywords)

    def set_latency(self, *, data: int | None = None, credit: int | None = None) -> None:
        self._everywhere("set_latency", data=data, credit=credit)

    def set_rate(self, numerator: int, denominator: int) -> None:
        self._everywhere("set_rate", numerator, denominator)

    def cut(self, *arguments: Any, **keywords: Any) -> None:
        self._everywhere("cut", *arguments, **keywords)

    def mend(self) -> None:
        self._everywhere("mend")

    def set_faults(self, faults: Any) -> None:
        self._everywhere("set_faults", faults)

    def _add(self, *arguments: Any) -> None:
        self._everywhere("_add", *arguments)

    def status(self) -> LinkStatus:
        """Settings and counters of a link, each read from the process that counts it."""
        here = super().status
        source, target = (cast(LinkStatus, self._parted.at(node, "status", here, link=self.index))
                          for node in (self.source[0], self.target[0]))
        backward = ("words_in_flight", "credits_carried", "credits_dropped", "last_credit")
        return dataclasses.replace(source, **{name: getattr(target, name) for name in backward})

    def faults(self) -> InjectedFaults:
        here = super().faults
        source, target = (cast(InjectedFaults, self._parted.at(node, "faults", here, link=self.index))
                          for node in (self.source[0], self.target[0]))
        return dataclasses.replace(source, back=target.back)


class PartedRing(VerilatedRing):
    """A ring in several processes, as seen from process 0: a :class:`~sim.verilated.ring.VerilatedRing` with all
    processes' nodes.

    Waveforms cannot be written. The memories of nodes in other processes are not views: see :class:`Contents`. A
    saved state can only be restored with the same partition into processes.

    Parameters
    ----------
    library, nodes, wiring
        See :class:`~sim.verilated.ring.VerilatedRing`.
    threads : int
        Number of threads in each process.
    processes : Processes
        The other processes, which end when the ring is closed.
    """

    def __init__(self, library: Library | Sequence[Library], *, processes: Processes, nodes: int | None = None,
                 threads: int = 1, wiring: Sequence[tuple[End, End]] | None = None) -> None:
        libraries = [library] * (4 if nodes is None else nodes) if isinstance(library, Library) else list(library)
        if any(item.traced for item in libraries):
            raise ValueError("A ring in several processes must have a library without waveforms")
        self._bounds = bounds(len(libraries), processes.number)
        self._processes = processes
        self._others = range(1, processes.number)
        self._busy, self._open = False, True
        self._exchange: Exchange | None = None
        try:
            setup = Setup(libraries, threads, wiring, self._bounds)
            self._exchange = processes.start(setup)
            part = Part(self._bounds, self._exchange)
            super().__init__(libraries, threads=threads, wiring=wiring, part=part)
            known = [(self.spaces, self.far_widths), *(self._answer(process) for process in self._others)]
        except BaseException:
            self._end(busy=True)
            raise
        self.spaces, self.far_widths = (tuple(map(sum, zip(*item, strict=True))) for item in zip(*known, strict=True))
        self.links = tuple(_PartedLink(self, self._library, self._ring, link.index, link.source, link.target)
                           for link in self.links)

    # Methods that call other processes.

    def process_of(self, node: int) -> int:
        """Index of the process that simulates a node."""
        return next(process for process in range(self._processes.number) if node < self._bounds[process + 1])

    def tell(self, process: int, method: str, *arguments: Any, link: int | None = None, **keywords: Any) -> None:
        """Call a method of another process's part of the ring, or of a link, without waiting for the result."""
        self._send(process, Call(method, arguments, keywords, link, answered=False))

    def tell_others(self, method: str, *arguments: Any, link: int | None = None, **keywords: Any) -> None:
        """Call a method of the ring in all other processes, without waiting."""
        for process in self._others:
            self.tell(process, method, *arguments, link=link, **keywords)

    def ask(self, process: int, method: str, *arguments: Any, link: int | None = None) -> Any:
        """Call a method in a process and return its result."""
        self._send(process, Call(method, arguments, {}, link))
        return self._answer(process)

    def at(self, node: int, method: str, here: Callable[[], Any], *arguments: Any, link: int | None = None) -> Any:
        """Call a method in a node's process; if that is this process, call ``here`` instead."""
        process = self.process_of(node)
        return self.ask(process, method, *arguments, link=link) if process else here()

    def _send(self, process: int, item: Any) -> None:
        if not self._open:
            raise ValueError("Simulation must be used before it is closed")
        try:
            self._processes.channel(process).send(item)
        except OSError:
            raise self._ended(process) from None

    def _answer(self, process: int) -> Any:
        try:
            answer = self._processes.channel(process).recv()
        except (OSError, EOFError):
            raise self._ended(process) from None
        if isinstance(answer, Failure):
            raise answer.error
        return answer

    def _ended(self, process: int) -> ProcessEndedError:
        """Return the error for a process that has ended; it names the process that ended first."""
        first = None if self._exchange is None else self._exchange.first_ended()
        process = first or process
        nodes = f"{self._bounds[process]} to {self._bounds[process + 1] - 1}"
        return ProcessEndedError(f"The ring's {self._processes.name(process)}, which had nodes {nodes}, has ended")

    def _end(self, *, busy: bool) -> None:
        if self._open:
            self._open = False
            self._processes.finish(busy=busy)
            if self._exchange is not None:
                self._exchange.close()

    def times(self) -> list[tuple[float, float]]:
        """CPU time in seconds of each process, and of its exchanges, including waiting."""
        assert self._exchange is not None
        return [(time.process_time(), self._exchange.used), *(self.ask(process, "times") for process in self._others)]

    def time_exchange(self, size: int) -> float:
        """Return the time in seconds to exchange ``size`` bytes per message between all processes or, for size 0, to
        agree; see :meth:`~sim.verilated.exchange.Exchange.time`."""
        assert self._exchange is not None
        for process in self._others:
            self._send(process, Call("time_exchange", (size,)))
        return max([self._exchange.time(size), *(float(self._answer(process)) for process in self._others)])

    # Methods of VerilatedRing.

    def close(self) -> None:
        super().close()
        self._end(busy=self._busy)

    def _check_node(self, node: int) -> None:
        if not 0 <= node < self.nodes:
            raise ValueError(f"Node must be between 0 and {self.nodes - 1}, not {node!r}")

    def reset(self) -> None:
        self.tell_others("reset")
        super().reset()

    def set_threads(self, threads: int) -> None:
        super().set_threads(threads)
        for process in self._others:
            self.tell(process, "set_threads", threads)

    def set_quantum(self, cycles: int) -> None:
        super().set_quantum(cycles)
        self.tell_others("set_quantum", cycles)

    def set_grid(self, cycles: int) -> None:
        super().set_grid(cycles)
        self.tell_others("set_grid", cycles)

    def run(self, cycles: int, *, until_packet_at: int | None = None) -> int:
        if cycles < 0:
            return super().run(cycles)  # this call raises the error
        if until_packet_at is not None:
            self._check_node(until_packet_at)
        self._busy = True
        self.tell_others("run", cycles, until_packet_at=until_packet_at)
        try:
            result = super().run(cycles, until_packet_at=until_packet_at)
        except RuntimeError:
            assert self._exchange is not None
            if (process := self._exchange.first_ended()) is not None:
                raise self._ended(process) from None
            self._busy = False
            raise
        self._busy = False
        return result

    def send(self, node: int, words: Any) -> None:
        self._check_node(node)
        if process := self.process_of(node):
            packet = np.array(words, np.uint32)
            if packet.ndim == 1 and packet.size:
                self.tell(process, "send", node, packet)
                return
        super().send(node, words)

    def receive(self, node: int) -> np.ndarray | None:
        self._check_node(node)
        here = super().receive
        result: np.ndarray | None = self.at(node, "receive", lambda: here(node), node)
        return result

    def status(self, node: int) -> NodeStatus:
        self._check_node(node)
        here = super().status
        result: NodeStatus = self.at(node, "status", lambda: here(node), node)
        return result

    def counters(self, node: int) -> np.ndarray | None:
        self._check_node(node)
        here = super().counters
        result: np.ndarray | None = self.at(node, "counters", lambda: here(node), node)
        return result

    def memory(self, node: int, space: int) -> Any:
        self._check_node(node)
        process = self.process_of(node)
        return Contents(self, process, "memory", (node, space)) if process else super().memory(node, space)

    def owners(self, node: int) -> Any:
        self._check_node(node)
        process = self.process_of(node)
        return Contents(self, process, "owners", (node,)) if process else super().owners(node)

    def far_memory(self, node: int) -> tuple[np.ndarray, int, int]:
        """Far memory of a node, copied if it is in another process, and the number of words read and written."""
        self._check_far(node)
        here = super().far_memory
        result: tuple[np.ndarray, int, int] = self.at(node, "far", lambda: here(node), node)
        return result

    def _far_speed(self, node: int, latency: int, rate: Fraction) -> None:
        if process := self.process_of(node):
            self.tell(process, "_far_speed", node, latency, rate)
        else:
            super()._far_speed(node, latency, rate)

    def save(self) -> bytes:
        """Save the whole state: the states of all processes in order."""
        parts = [super().save(), *(self.ask(process, "save") for process in self._others)]
        return self._beginning + np.array([len(part) for part in parts], np.uint64).tobytes() + b"".join(parts)

    def restore(self, state: bytes) -> None:
        """Continue from a state saved by this ring, or by another ring with the same library, size and processes."""
        if not state.startswith(self._beginning):
            raise ValueError("State must be one saved from a ring of the same library, size and processes")
        lengths = np.frombuffer(state, np.uint64, self._processes.number, len(self._beginning))
        places = np.cumsum([len(self._beginning) + lengths.nbytes, *lengths.astype(int)]).tolist()
        for process in self._others:
            self.ask(process, "restore", state[places[process]:places[process + 1]])
        super().restore(state[places[0]:places[1]])

    @property
    def _beginning(self) -> bytes:
        return f"gradring states {self._bounds}\n".encode()

    def start_wave(self, path: Path) -> None:
        raise ValueError(f"A waveform must be of a ring in one process, not {path}")
