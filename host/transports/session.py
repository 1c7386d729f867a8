"""A ring on a transport chosen by name, with the time it takes."""

import contextlib
import dataclasses
import enum
import time
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hdl.config import Configuration
from hdl.ring.topology import MOST_NODES, GridTopology
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
from host.topology.switching import GridNodes
from host.transports.backdoor import BackdoorTransport, PortTime
from host.transports.messages import MessageHub, place_of
from host.transports.serial_frame import BAUD
from sim.link_faults import RandomFaults
from sim.verilated.native import Arithmetic

if TYPE_CHECKING:
    from sim.verilated.part_server import Processes

__all__ = ["FAR_LATENCY", "LATENCY", "LONGEST_REPLAYED", "MAX_LATENCY", "Elapsed", "Session", "TransportName",
           "grid_of", "open_session"]

#: Cycles of a link, unless another number is asked for, and most cycles.
LATENCY, MAX_LATENCY = 16, 1_000_000

#: Most cycles of the grid at which a simulation stops for the host.
LONGEST_GRID = 256

#: Cycles from a request to the answer of far memories.
FAR_LATENCY = 40

#: Most cycles of a link that repeats words: the answer to START comes before the third one is sent.
LONGEST_REPLAYED = 480


def grid_of(latency: int) -> int:
    """Cycles at whose multiples a simulation of links of this latency stops for the host: so many that its nodes, and
    processes, can run ahead of each other for the whole latency."""
    return max(LATENCY, min(latency, LONGEST_GRID) // LATENCY * LATENCY)


class TransportName(enum.Enum):
    """Ways to nodes, by the names the command line knows them by."""

    VERILATED = "verilated"
    MESSAGES = "messages"
    """Verilated nodes of which only node 0 has a host, which reaches the others by messages."""
    PYSIM = "pysim"
    BOARD = "board"
    """A simulated board behind a pseudo-terminal."""
    SERIAL = "serial"
    """A board behind a serial port."""


class _Stopwatch:
    """A transport that adds the time spent waiting for responses, which is when a simulation runs, to ``seconds``."""

    seconds = 0.0

    def __init__(self, transport: Transport):
        self._transport = transport

    def send(self, packet: Words) -> None:
        self._transport.send(packet)

    def receive(self, timeout_cycles: int) -> Words:
        begun = time.perf_counter()
        try:
            return self._transport.receive(timeout_cycles)
        finally:
            self.seconds += time.perf_counter() - begun

    def close(self) -> None:
        self._transport.close()


class Elapsed(NamedTuple):
    """Time of a simulation, in cycles.

    Members
    -------
    simulated : int
        Cycles that were simulated.
    port_cycles, port_words : int
        Cycles and words that the nodes' host ports would have taken for transfers that went round them, as computed;
        the cycles come on top of those that were simulated.
    """

    simulated: int = 0
    port_cycles: int = 0
    port_words: int = 0

    @property
    def cycles(self) -> int:
        """Cycles of a simulation in which everything goes through the host ports."""
        return self.simulated + self.port_cycles

    def since(self, other: "Elapsed") -> "Elapsed":
        """Time from another moment to this one."""
        return Elapsed(*(here - there for here, there in zip(self, other, strict=True)))

    def plus(self, other: "Elapsed") -> "Elapsed":
        """Both times together."""
        return Elapsed(*(here + there for here, there in zip(self, other, strict=True)))


@dataclasses.dataclass(frozen=True)
class Session:
    """A connected ring.

    Members
    -------
    ring : Ring
        Nodes in a ring; of a grid, in the order of their numbers, before its switches are set.
    config : Configuration
        Configuration of every node.
    build_seconds : dict
        Time per stage of the build; a stage whose result was there already has none.
    grid : GridNodes, optional
        Nodes of a grid, which has rings once its switches are set.
    """

    ring: Ring
    config: Configuration
    build_seconds: dict[str, float]
    _cycle: Callable[[], int]
    _port_time: PortTime
    _stopwatches: list[_Stopwatch]
    _faults: Callable[[], int] = lambda: 0
    grid: GridNodes | None = None

    @property
    def faults(self) -> int:
        """Faults that the simulated links were given so far."""
        return self._faults()

    @property
    def cycle(self) -> int:
        """Cycles simulated so far."""
        return self._cycle()

    @property
    def elapsed(self) -> Elapsed:
        """Cycles so far, with those of the host ports where transfers have gone round them."""
        return Elapsed(self._cycle(), self._port_time.cycles, self._port_time.words)

    @property
    def seconds(self) -> float:
        """Time that the simulation has taken so far."""
        return sum(watch.seconds for watch in self._stopwatches)


def _check(config: Configuration, *, nodes: int, transport: TransportName, arithmetic: Arithmetic, host_port: bool,
           latency: int, **rest: Any) -> None:
    """Check the arguments of :func:`open_session` together."""
    if transport is TransportName.MESSAGES and not (config.link.messages and nodes > 1):
        raise ValueError("Nodes for transport messages must be two or more, and have messages")
    if (transport is TransportName.SERIAL) != (rest["device"] is not None):
        raise ValueError(f"Serial port must be given for transport serial, and for no other, not "
                         f"{represent(rest['device'])} for {transport.value}")
    config.check_ring(nodes)
    if config.link.replay and latency > LONGEST_REPLAYED:
        raise ValueError(f"Latency of links with replay must be at most {LONGEST_REPLAYED} cycles, not {latency!r}")
    slow_link, verilated = rest["slow_link"], (TransportName.VERILATED,)
    if slow_link is not None and (transport not in verilated or not slow_link[0] < nodes):
        raise ValueError(f"Slow link must be that of a rank below {nodes} on transport verilated, not of "
                         f"{slow_link[0]!r} on {transport.value}")
    simulated = (*verilated, TransportName.MESSAGES, TransportName.PYSIM, TransportName.BOARD)
    for asked, transports, reason in (
            (not host_port, verilated, "to bypass the host port"),
            (arithmetic is not Arithmetic.GATEWARE, verilated, "for native arithmetic"),
            (rest["faults"] is not None, (*verilated, TransportName.PYSIM), "for faults of links"),
            (rest["grid"] is not None, simulated, "for a grid"),
            (rest["far_rate"] is not None, verilated, "for a far memory"),
            (rest["processes"] is not None, verilated, "for several processes"),
            (rest["wave"] is not None, (*verilated, TransportName.MESSAGES), "for a waveform")):
        if asked and transport not in transports:
            names = " or ".join(choice.value for choice in transports)
            raise ValueError(f"Transport must be {names} {reason}, not {transport.value}")


@checked(
    _check, config=Instance(Configuration, "a NodeConfig"), nodes=Integer(1, MOST_NODES),
    transport=Member(TransportName), threads=Integer(1), arithmetic=Member(Arithmetic), host_port=Flag(),
    latency=Integer(1, MAX_LATENCY), timeout=Integer(1), faults=Optional(Instance(RandomFaults, "RandomFaults")),
    slow_link=Optional(Items((Integer(0), Number(0, above=True)), "a rank and the words per cycle of its link")),
    far_rate=Optional(Number(0, above=True)),
    processes=Optional(Instance(("sim.verilated.part_server", "Processes"), "Processes")),
    wave=Optional(PathName()), grid=Optional(Items((Integer(1), Integer(1)), "numbers of rows and columns")),
    rates=Optional(Table(Integer(1), "a mapping of clock and baud to integers of at least 1")),
    device=Optional(Text()), baud=Integer(1), frequency=Number(0, above=True), persistence=Number(0), say=Call(),
    announce=Call())
@contextlib.contextmanager
def open_session(config: Configuration, *, nodes: int, transport: TransportName = TransportName.VERILATED,
                 threads: int = 1, arithmetic: Arithmetic = Arithmetic.GATEWARE, host_port: bool = True,
                 latency: int = LATENCY, timeout: int = TIMEOUT, faults: RandomFaults | None = None,
                 slow_link: tuple[int, Fraction] | None = None, far_rate: float | None = None,
                 processes: "Processes | None" = None, wave: Path | None = None, grid: tuple[int, int] | None = None,
                 rates: Mapping[str, int] | None = None,
                 device: str | None = None, baud: int = BAUD, frequency: float = 24e6, persistence: float = 0.0,
                 say: Callable[[str], None] = lambda text: None,
                 announce: Callable[[str], None] = lambda stage: None) -> Iterator[Session]:
    """Build and start a ring, connect to it, and close it in the end: ``with open_session(…) as session:``.

    Parameters
    ----------
    config : Configuration
        Configuration of every node.
    nodes : int
        Ring size, or nodes of the whole grid.
    transport : TransportName
    threads : int
        Threads of the Verilated simulation; they change its speed alone.
    arithmetic : Arithmetic
        Whether a Verilated simulation has floating-point units of gateware; native ones change its speed alone.
    host_port : bool
        Whether transfers to and from memories go through the nodes' host ports; if not, in a Verilated simulation,
        they take no simulated time, and :attr:`Session.elapsed` tells the time that they would have taken.
    latency : int
        Cycles of each link, for words and for credits.
    timeout : int
        Cycles that a node waits for the ring before it gives a command up, beyond what the links' latency explains.
    faults : RandomFaults, optional
        Random faults of all links, of transports verilated and pysim.
    slow_link : tuple of int and Fraction, optional
        A rank, and the words per cycle of the link from it; Verilated only. By default all links have one.
    far_rate : float, optional
        Words per cycle of nodes' far memories, which answer after :data:`FAR_LATENCY` cycles; Verilated only. By
        default those of a simulation that was just made.
    processes : Processes, optional
        Other processes that have some of the nodes; Verilated only.
    wave : Path, optional
        Write all signals to this file; Verilated only.
    grid : tuple of int, optional
        Rows and columns of nodes with two ports, joined as :mod:`host.topology.grid` says; simulated ones.
    rates : mapping, optional
        Clock and baud rate of a simulated board; by default those with the fewest cycles to a bit.
    device : str, optional
        The serial port of a board.
    baud : int
        Bits per second on it.
    frequency : float
        Cycles per second of the nodes on that board.
    persistence : float
        Seconds for which a serial port that is lost is waited for.
    say : callable
        Called with a line if a port is lost, and when it is back.
    announce : callable
        Called with the name of each stage of a build as it begins.
    """
    verilated = (TransportName.VERILATED, TransportName.MESSAGES)
    wiring = None if grid is None else GridTopology(*grid).wiring
    with contextlib.ExitStack() as stack:
        transports: list[Transport]

        def injected() -> int:
            return 0

        port_time = PortTime()
        if transport in verilated:
            from host.transports.verilated import open_ring

            opened = stack.enter_context(
                open_ring(config, nodes=nodes, threads=threads, wave=wave, arithmetic=arithmetic, wiring=wiring,
                          processes=processes, announce=announce))
            grid_cycles = grid_of(latency)
            opened.simulation.set_grid(grid_cycles)
            for one in opened.simulation.links:
                one.set_latency(data=latency, credit=latency)
            if slow_link is not None:
                opened.simulation.links[slow_link[0]].set_rate(*slow_link[1].as_integer_ratio())
            opened.simulation.set_faults(faults)
            if far_rate is not None:
                opened.simulation.set_far_speed(latency=FAR_LATENCY, rate=far_rate)
            transports, seconds = list(opened.transports), opened.seconds

            def cycle() -> int:
                return opened.simulation.cycle

            def injected() -> int:
                return sum(one.faults().total for one in opened.simulation.links)

            if transport is TransportName.MESSAGES:
                transports = list(MessageHub(transports[0], nodes=nodes).transports)
            elif not host_port and not all(opened.simulation.spaces):
                announce("transfers by the host port, since the library does not know where memories are")
            elif not host_port:
                port_time = PortTime(cycle, grid_cycles)
                transports = [BackdoorTransport(one, opened.simulation, node, config, port_time)
                              for node, one in enumerate(transports)]
        elif transport is TransportName.BOARD:
            from host.transports.serial_board import SerialBoard
            from sim.verilated.board import RATES, SimulatedBoard, board_library

            rates = RATES if rates is None else rates
            library = board_library(config, nodes=nodes, grid=grid, rates=rates, announce=announce)
            seconds = library.seconds
            board = stack.enter_context(SimulatedBoard(library, clock=rates["clock"], baud=rates["baud"]))
            link = stack.enter_context(SerialBoard(board.path, nodes=nodes, frequency=board.frequency,
                                                   clock=board.time, persistence=persistence, announce=say))
            transports = list(link.transports)

            def cycle() -> int:
                return board.cycle
        elif device is not None:
            from host.transports.serial_board import SerialBoard

            link = stack.enter_context(SerialBoard(device, baud=baud, nodes=nodes, frequency=frequency,
                                                   persistence=persistence, announce=say))
            transports, seconds = list(link.transports), {}

            def cycle() -> int:
                return int(ring.devices[0].read_register("CYCLES"))  # since counters were last cleared
        else:
            from hdl.board import node_of
            from host.transports.pysim import PysimRing

            simulation = PysimRing(lambda: node_of(config), nodes=nodes, latency=latency, wiring=wiring,
                                   faults=faults)
            transports, seconds = list(simulation.transports), {}

            def cycle() -> int:
                return simulation.cycle

            def injected() -> int:
                return sum(sum(one.values()) for one in simulation.faults)

        watches = [_Stopwatch(one) for one in transports]
        devices = [Device(watch, config, name=f"node {rank}") for rank, watch in enumerate(watches)]
        if transport is TransportName.MESSAGES:
            devices[0].write_register("SLOT_PLACE", place_of(nodes))
        ring, every = Ring(devices, timeout=timeout + 4 * latency), None
        if grid is None:
            ring.connect()
        else:
            every = GridNodes(devices, rows=grid[0], columns=grid[1], timeout=timeout + 4 * latency)
            every.connect()
        yield Session(ring, config, seconds, cycle, port_time, watches, injected, every)
