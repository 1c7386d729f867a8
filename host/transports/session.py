"""Sessions with a ring on a transport that is chosen by name, and their elapsed time."""

import contextlib
import dataclasses
import enum
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hdl.config import Configuration
from hdl.ring.topology import MAX_NODES, GridTopology
from host.arguments import (
    Call,
    Flag,
    Instance,
    Integer,
    Items,
    Member,
    Number,
    Optional,
    PathName,
    Table,
    Text,
    checked,
    represent,
)
from host.driver.device import Device
from host.driver.devices import TIMEOUT
from host.driver.ring import Ring
from host.driver.transport import Transport
from host.driver.words import Words
from host.feature import feature
from host.options import Section, option, with_sections
from host.transports.backdoor import BackdoorTransport, PortTime
from host.transports.golden.session import GoldenSession, check_golden, open_golden
from host.transports.serial_link import BAUD
from sim.link_faults import RandomFaults
from sim.verilated.native import Arithmetic

if TYPE_CHECKING:
    from host.features.grid.switching import GridNodes
    from sim.verilated.part_server import Processes

__all__ = ["FAR_LATENCY", "LATENCY", "LONGEST_REPLAYED", "MAX_LATENCY", "BoardOptions", "Elapsed", "LinkOptions",
           "ProgressOptions", "Session", "SimulationOptions", "TransportName", "grid_of", "open_session"]

#: Default and maximum link latency in cycles.
LATENCY, MAX_LATENCY = 16, 1_000_000

#: Maximum number of cycles that a simulation runs before it stops for the host.
LONGEST_GRID = 256

#: Latency of a far memory in cycles, from a request to its answer.
FAR_LATENCY = 40

#: Maximum latency of a link that resends words: a START must be answered before the third START is sent.
LONGEST_REPLAYED = 480


def grid_of(latency: int) -> int:
    """Return the number of cycles that a simulation runs before it stops for the host, for links of this latency.
    Nodes and processes can run ahead of each other by this number of cycles."""
    return max(LATENCY, min(latency, LONGEST_GRID) // LATENCY * LATENCY)


class TransportName(enum.Enum):
    """Transports to the nodes, named as on the command line."""

    VERILATED = "verilated"
    MESSAGES = "messages"  # Verilated nodes. Only node 0 has a host, which reaches the other nodes by messages
    PYSIM = "pysim"
    BOARD = "board"  # nodes on a simulated board at a pseudo-terminal
    SERIAL = "serial"  # nodes on a board at a serial port
    GOLDEN = "golden"  # golden models instead of nodes, with modelled cycles; see docs/simulation.md


class _Stopwatch:
    """Transport that adds to ``seconds`` the time spent waiting for responses while the simulation runs."""

    seconds = 0.0

    def __init__(self, transport: Transport):
        self._transport = transport
        self.send, self.close = transport.send, transport.close

    def receive(self, timeout_cycles: int) -> Words:
        begun = time.perf_counter()
        try:
            return self._transport.receive(timeout_cycles)
        finally:
            self.seconds += time.perf_counter() - begun


class Elapsed(NamedTuple):
    """Elapsed time of a simulation: its cycles, and the computed cycles of host ports."""

    simulated: int = 0
    # extra cycles and words, computed for transfers that bypassed the host ports
    port_cycles: int = 0
    port_words: int = 0

    @property
    def cycles(self) -> int:
        """Number of cycles that the simulation would have taken if all transfers had used the host ports."""
        return self.simulated + self.port_cycles

    def since(self, other: "Elapsed") -> "Elapsed":
        """Return the time that has elapsed since the earlier reading ``other``."""
        return Elapsed(*(here - there for here, there in zip(self, other, strict=True)))

    def plus(self, other: "Elapsed") -> "Elapsed":
        """Add two elapsed times."""
        return Elapsed(*(here + there for here, there in zip(self, other, strict=True)))


@dataclasses.dataclass(frozen=True)
class Session:
    """A session: a connected ring, its configuration and its elapsed time."""

    ring: Ring  # for a grid: its nodes in numerical order, before the switches are set
    config: Configuration  # configuration of every node
    build_seconds: dict[str, float]  # duration of each build stage, except cached stages
    _cycle: Callable[[], int]
    _port_time: PortTime
    _seconds: Callable[[], float] = lambda: 0.0
    _faults: Callable[[], int] = lambda: 0
    grid: "GridNodes | None" = None  # nodes of a grid, which form rings once its switches are set
    golden: bool = False  # whether the nodes are golden models, without simulated cycles

    @property
    def faults(self) -> int:
        """Number of faults on the simulated links so far."""
        return self._faults()

    @property
    def cycle(self) -> int:
        """Number of cycles simulated so far."""
        return self._cycle()

    @property
    def elapsed(self) -> Elapsed:
        """Number of cycles so far, including the cycles computed for host ports."""
        return Elapsed(self._cycle(), self._port_time.cycles, self._port_time.words)

    @property
    def seconds(self) -> float:
        """Number of seconds spent in the simulation so far."""
        return self._seconds()


@dataclasses.dataclass(frozen=True)
class SimulationOptions(Section):
    """Options for the simulation of Verilated nodes."""

    #: Number of threads. Affects only the speed.
    threads: int = option(1, kind=Integer(1))
    #: Whether floating-point units are gateware or native code. Affects only the speed.
    arithmetic: Arithmetic = option(Arithmetic.GATEWARE, kind=Member(Arithmetic))
    #: Whether transfers of memories use the nodes' host ports; otherwise they take no simulated time, and
    #: :attr:`Session.elapsed` includes their computed time.
    host_port: bool = option(True, kind=Flag())
    #: Number of additional processes, which share the simulation of the nodes.
    processes: "Processes | None" = option(
        None, kind=Optional(Instance(("sim.verilated.part_server", "Processes"), "Processes")))
    #: File that all signals are written to.
    wave: Path | None = option(None, kind=Optional(PathName()))
    #: Far memory rate in words per cycle, or None for the default. The latency is :data:`FAR_LATENCY` cycles.
    far_rate: float | None = option(None, kind=Optional(Number(0, above=True)))


@dataclasses.dataclass(frozen=True)
class LinkOptions(Section):
    """Options for links between nodes."""

    #: Latency of each link in cycles, both for words and for credits.
    latency: int = option(LATENCY, kind=Integer(1, MAX_LATENCY))
    #: Cycles that a node waits for the ring before it abandons a command, in addition to the cycles that the latency
    #: requires.
    timeout: int = option(TIMEOUT, kind=Integer(1))
    #: Random faults on all links, only for the transports verilated and pysim.
    faults: RandomFaults | None = option(None, kind=Optional(Instance(RandomFaults, "RandomFaults")))
    #: A rank and the rate of the link from it in words per cycle; other links have rate 1. Verilated nodes only.
    slow_link: tuple[int, Fraction] | None = option(None, kind=Optional(
        Items((Integer(0), Number(0, above=True)), "a rank and the words per cycle of its link")))
    #: Rows and columns of simulated nodes with two ports, connected as in :mod:`host.features.grid.grid`.
    grid: tuple[int, int] | None = option(None, kind=Optional(
        Items((Integer(1), Integer(1)), "numbers of rows and columns")))

    @property
    def wiring(self) -> Any:
        """Wiring of the grid, or None without a grid."""
        return None if self.grid is None else GridTopology(*self.grid).wiring


@dataclasses.dataclass(frozen=True)
class BoardOptions(Section):
    """Options for a board, either simulated or at a serial port."""

    #: Clock and baud rate of a simulated board. Defaults to the rates with the fewest cycles per bit.
    rates: Mapping[str, int] | None = option(None, kind=Optional(
        Table(Integer(1), "a mapping of clock and baud to integers of at least 1")))
    #: Name of a board's serial port.
    device: str | None = option(None, kind=Optional(Text()))
    #: Baud rate of the board's serial port.
    baud: int = option(BAUD, kind=Integer(1))
    #: Clock frequency in Hz of the nodes on the board at a serial port.
    frequency: float = option(24e6, kind=Number(0, above=True))
    #: How long to wait for a lost serial port, in seconds.
    persistence: float = option(0.0, kind=Number(0))


@dataclasses.dataclass(frozen=True)
class ProgressOptions(Section):
    """Functions that are called to report progress."""

    #: Function that is called with a line of text when a port is lost and when it returns.
    say: Callable[[str], None] = option(lambda text: None, kind=Call())
    #: Function that is called with the name of each build stage when the stage starts.
    announce: Callable[[str], None] = option(lambda stage: None, kind=Call())


@dataclasses.dataclass(frozen=True)
class _Request:
    """Request for a session. Its constructor checks that the options are compatible."""

    config: Configuration
    nodes: int
    transport: TransportName
    simulation: SimulationOptions
    links: LinkOptions
    board: BoardOptions
    progress: ProgressOptions

    def __post_init__(self) -> None:
        transport, config, links = self.transport, self.config, self.links
        if transport is TransportName.MESSAGES and not (config.link.messages and self.nodes > 1):
            raise ValueError("Nodes for transport messages must be two or more, and have messages")
        if (transport is TransportName.SERIAL) != (self.board.device is not None):
            raise ValueError(f"Serial port must be given for transport serial, and for no other, not "
                             f"{represent(self.board.device)} for {transport.value}")
        config.check_ring(self.nodes)
        if transport is TransportName.GOLDEN:
            check_golden(config)
        if config.link.replay and links.latency > LONGEST_REPLAYED:
            raise ValueError(f"Latency of links with replay must be at most {LONGEST_REPLAYED} cycles, not "
                             f"{links.latency!r}")
        if links.slow_link is not None and (
                transport is not TransportName.VERILATED or not links.slow_link[0] < self.nodes):
            raise ValueError(f"Slow link must be that of a rank below {self.nodes} on transport verilated, not of "
                             f"{links.slow_link[0]!r} on {transport.value}")
        for requested, transports, reason in self._needs():
            if requested and transport not in transports:
                names = " or ".join(choice.value for choice in transports)
                raise ValueError(f"Transport must be {names} {reason}, not {transport.value}")

    def _needs(self) -> list[tuple[bool, tuple[TransportName, ...], str]]:
        """List optional properties: whether each is requested, which transports support it, and its name."""
        simulation, verilated = self.simulation, (TransportName.VERILATED,)
        return [
            (not simulation.host_port, verilated, "to bypass the host port"),
            (simulation.threads > 1 and self.transport is TransportName.GOLDEN, verilated, "for several threads"),
            (simulation.arithmetic is not Arithmetic.GATEWARE, verilated, "for native arithmetic"),
            (self.links.faults is not None, (*verilated, TransportName.PYSIM), "for faults of links"),
            (self.links.grid is not None, (*verilated, TransportName.MESSAGES, TransportName.PYSIM,
                                           TransportName.BOARD, TransportName.GOLDEN), "for a grid"),
            (simulation.far_rate is not None, verilated, "for a far memory"),
            (simulation.processes is not None, verilated, "for several processes"),
            (simulation.wave is not None, (*verilated, TransportName.MESSAGES), "for a waveform")]


@dataclasses.dataclass(frozen=True)
class _Opened:
    """Nodes that a transport has opened."""

    transports: Sequence[Transport]
    seconds: dict[str, float]  # seconds of each stage of the build
    cycle: Callable[[Ring], int]  # returns the ring's number of cycles so far
    port_time: PortTime = dataclasses.field(default_factory=PortTime)
    injected: Callable[[], int] = lambda: 0  # returns the number of link faults so far
    golden: GoldenSession | None = None  # golden nodes, if they are used instead of a transport


def _open_golden(stack: contextlib.ExitStack, request: _Request) -> _Opened:
    """Create golden models in place of nodes."""
    golden = open_golden(request.config, nodes=request.nodes, latency=request.links.latency)
    return _Opened([], {}, lambda connected: 0, golden=golden)


def _open_verilated(stack: contextlib.ExitStack, request: _Request) -> _Opened:
    """Open simulated nodes. With the transport ``messages``, only the first node has a host."""
    from host.transports.verilated import open_ring

    simulation, links, announce = request.simulation, request.links, request.progress.announce
    opened = stack.enter_context(open_ring(
        request.config, nodes=request.nodes, threads=simulation.threads, wave=simulation.wave,
        arithmetic=simulation.arithmetic, wiring=links.wiring, processes=simulation.processes, announce=announce))
    ring, cycles, port_time = opened.simulation, grid_of(links.latency), PortTime()
    ring.set_grid(cycles)
    for link in ring.links:
        link.set_latency(data=links.latency, credit=links.latency)
    if links.slow_link is not None:
        ring.links[links.slow_link[0]].set_rate(*links.slow_link[1].as_integer_ratio())
    ring.set_faults(links.faults)
    if simulation.far_rate is not None:
        ring.set_far_speed(latency=FAR_LATENCY, rate=simulation.far_rate)
    transports: Sequence[Transport] = list(opened.transports)
    if request.transport is TransportName.MESSAGES:
        transports = feature("slots").reach(transports[0], request.nodes)
    elif not simulation.host_port and not all(ring.spaces):
        announce("transfers by the host port, since the library does not know where memories are")
    elif not simulation.host_port:
        port_time = PortTime(lambda: ring.cycle, cycles)
        transports = [BackdoorTransport(transport, ring, rank, request.config, port_time)
                      for rank, transport in enumerate(transports)]
    return _Opened(transports, opened.seconds, lambda connected: ring.cycle, port_time,
                   lambda: sum(link.faults().total for link in ring.links))


def _open_board(stack: contextlib.ExitStack, request: _Request) -> _Opened:
    """Open nodes on a simulated board."""
    from host.transports.serial_board import SerialBoard
    from sim.verilated.board import RATES, SimulatedBoard, board_library

    rates = RATES if request.board.rates is None else request.board.rates
    library = board_library(request.config, nodes=request.nodes, grid=request.links.grid, rates=rates,
                            announce=request.progress.announce)
    board = stack.enter_context(SimulatedBoard(library, clock=rates["clock"], baud=rates["baud"]))
    line = stack.enter_context(SerialBoard(
        board.path, nodes=request.nodes, frequency=board.frequency, clock=board.time,
        persistence=request.board.persistence, announce=request.progress.say))
    return _Opened(line.transports, library.seconds, lambda connected: board.cycle)


def _open_serial(stack: contextlib.ExitStack, request: _Request) -> _Opened:
    """Open the nodes of a board at a serial port. Cycles count from the last time that the counter was cleared."""
    from host.transports.serial_board import SerialBoard

    board = request.board
    assert board.device is not None
    line = stack.enter_context(SerialBoard(
        board.device, baud=board.baud, nodes=request.nodes, frequency=board.frequency,
        persistence=board.persistence, announce=request.progress.say))
    return _Opened(line.transports, {}, lambda connected: int(connected.devices[0].read_register("CYCLES")))


def _open_pysim(stack: contextlib.ExitStack, request: _Request) -> _Opened:
    """Open nodes in Amaranth's simulator."""
    from hdl.board import node_of
    from host.transports.pysim import PysimRing

    links = request.links
    simulation = PysimRing(lambda: node_of(request.config), nodes=request.nodes, latency=links.latency,
                           wiring=links.wiring, faults=links.faults)
    return _Opened(simulation.transports, {}, lambda connected: simulation.cycle,
                   injected=lambda: sum(sum(link.values()) for link in simulation.faults))


_OPENERS = {
    TransportName.VERILATED: _open_verilated, TransportName.MESSAGES: _open_verilated,
    TransportName.PYSIM: _open_pysim, TransportName.BOARD: _open_board, TransportName.SERIAL: _open_serial,
    TransportName.GOLDEN: _open_golden}


@checked(config=Instance(Configuration, "a NodeConfig"), nodes=Integer(1, MAX_NODES),
         transport=Member(TransportName))
@with_sections
def open_session(
        config: Configuration, *, nodes: int, transport: TransportName = TransportName.VERILATED,
        simulation: SimulationOptions, links: LinkOptions, board: BoardOptions,
        progress: ProgressOptions) -> contextlib.AbstractContextManager[Session]:
    """Build, start and connect a ring, and close it at the end: ``with open_session(…) as session:``.

    All nodes, even of a whole grid, have the same ``config``. Section fields are passed as keyword arguments instead
    of the sections: ``open_session(node, nodes=2, threads=4)``. ``simulation`` applies to Verilated nodes; transport
    messages supports only its threads and waveform.

    Raises ``TypeError`` if an argument has the wrong type, and ``ValueError`` if the
    options do not fit together.
    """
    return _session(_Request(config, nodes, transport, simulation, links, board, progress))


@contextlib.contextmanager
def _session(request: _Request) -> Iterator[Session]:
    with contextlib.ExitStack() as stack:
        opened = _OPENERS[request.transport](stack, request)
        watches = [_Stopwatch(transport) for transport in opened.transports]
        devices = opened.golden.devices if opened.golden else [
            Device(watch, request.config, name=f"node {rank}") for rank, watch in enumerate(watches)]
        if request.transport is TransportName.MESSAGES:
            devices[0].write_register("SLOT_POSITION", request.nodes << 4)  # gives the other nodes their ranks
        timeout = request.links.timeout + 4 * request.links.latency
        ring, golden, grid = Ring(devices, timeout=timeout), opened.golden and opened.golden.nodes, None
        if request.links.grid is not None:
            rows, columns = request.links.grid
            grid = feature("grid").grid_nodes(devices, golden=golden, rows=rows, columns=columns, timeout=timeout)
        (ring if grid is None else grid).connect()
        yield Session(ring, request.config, opened.seconds, lambda: opened.cycle(ring), opened.port_time,
                      lambda: sum(clock.seconds for clock in (watches if golden is None else [golden])),
                      opened.injected, grid, golden is not None)
