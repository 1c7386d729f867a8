# amaranth: UnusedElaboratable=no
"""Simulated board with a pseudo-terminal as its serial port.

Bytes pass through the pins of the Verilated design bit by bit. Simulated time advances as fast as possible, but stops
while the board is idle.

Example
-------
::

    with SimulatedBoard(board_library(config, nodes=2), **RATES) as board:
        port = serial.Serial(board.path)
"""

import contextlib
import ctypes
import dataclasses
import math
import os
import pty
import select
import tempfile
import threading
import time
import tty
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from amaranth.lib.wiring import Component

from hdl.board import BoardTop
from hdl.config import Configuration
from sim.verilated import toolchain
from sim.verilated.build import FLAGS, Library, compile_library, options
from sim.verilated.verilog import convert, with_loops

__all__ = ["RATES", "Faults", "SimulatedBoard", "board_library", "build_board"]

#: Clock and baud rate with the fewest cycles per bit, for the fastest simulation.
RATES = {"clock": 4, "baud": 1}

_HERE = Path(__file__).parent
_STEP = 1000  # cycles between polls of the pseudo-terminal
_REST = 0.01  # seconds between polls while the board is idle


def build_board(board: Component, *, identity: str | None = None,
                announce: Callable[[str], None] = lambda stage: None) -> Library:
    """Build a board's simulation unless it has already been built.

    Parameters
    ----------
    board : Component
        Component with the same ports as :class:`hdl.board.BoardTop`.
    identity, announce
        See :func:`~sim.verilated.build.build_ring`.
    """
    seconds = {}

    def stage(name: str) -> float:
        announce(name)
        return time.monotonic()

    begun = stage("Verilog")
    design = convert(board, name="board", identity=identity)
    # As in a ring, logic that waits for a reset is omitted, since the board starts in its configured state.
    verilog = (f"{with_loops(design.text)}\nmodule board_pins(input clk, input rx, output tx, output busy);\n"
               f"  board board(.clk(clk), .rst(1'd0), .rx(rx), .tx(tx), .busy(busy), .lights());\nendmodule\n")
    seconds["Verilog"] = time.monotonic() - begun
    harness = toolchain.sources([_HERE / "board.h", _HERE / "board.cpp"])
    verilate = options("board", "board_pins")
    key = toolchain.digest(verilog, repr(harness), repr((*verilate, *FLAGS)), toolchain.version("verilator"),
                           toolchain.target(), toolchain.source(build_board, compile_library))
    directory = toolchain.cache_folder("verilated") / f"board-{key}"

    def build(folder: Path) -> None:
        for name, text in {"board.v": verilog, **harness}.items():
            (folder / name).write_text(text)
        begun = stage("Verilate")
        verilator = str(toolchain.verilator() / "bin" / "verilator")
        toolchain.run([verilator, *verilate, "-Mdir", "obj", "board.v"], cwd=folder, env=toolchain.environment())
        seconds["Verilate"] = time.monotonic() - begun
        begun = stage("compile")
        compile_library(folder, name="board", model="board")
        seconds["compile"] = time.monotonic() - begun

    toolchain.cached(directory, build, announce=announce)
    return Library(directory / "board.so", False, "compile" in seconds, seconds)


def board_library(config: Configuration, *, nodes: int, grid: tuple[int, int] | None = None,
                  rates: Mapping[str, int] = RATES, announce: Callable[[str], None] = lambda stage: None) -> Library:
    """Build a board with ``nodes`` nodes, in a ring or grid, at these ``rates`` (clock and baud)."""
    top = BoardTop(config=config, nodes=nodes, flash=1, grid=grid, **rates)
    wired = "" if grid is None else f", {grid}"
    return build_board(top, identity=f"BoardTop({config}, {nodes}, {rates}{wired})", announce=announce)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults:
    """Faults of a bad cable, in both directions.

    Parameters
    ----------
    flip, drop : float
        Fraction of bytes with an inverted bit, and fraction of bytes lost.
    seed : int
    """

    flip: float = 0.001
    drop: float = 0.0001
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("flip", "drop"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name.capitalize()} rate must be between 0 and 1, not {getattr(self, name)!r}")


class _Cable:
    """One direction of the cable, which transports bytes and injects faults."""

    def __init__(self, faults: Faults | None, direction: int):
        self._faults = faults
        self._generator = np.random.default_rng((0 if faults is None else faults.seed, direction))
        self.flipped = 0
        self.dropped = 0

    def pass_on(self, given: bytes) -> bytes:
        faults = self._faults
        if faults is None or not given:
            return given
        data = np.frombuffer(given, np.uint8)
        flips = self._generator.random(data.size) < faults.flip
        bits = self._generator.integers(0, 8, data.size, dtype=np.uint8)
        drops = self._generator.random(data.size) < faults.drop
        self.flipped += int(flips.sum())
        self.dropped += int(drops.sum())
        return np.where(flips, data ^ np.uint8(1) << bits, data)[~drops].astype(np.uint8).tobytes()


class SimulatedBoard:
    """Simulated board with a pseudo-terminal; a separate thread advances the simulation.

    Parameters
    ----------
    library : Library
        Library built by :func:`build_board`.
    clock, baud : int
        Clock in Hz and baud rate in bits per second.
    frequency : float
        Cycles per second of :attr:`time`; by default, the frequency of a board with a 3 Mbaud line.
    delay : int
        Extra delay of a byte in each direction, in cycles, after its time on the wire.
    faults : Faults or None
        Faults of the cable.

    Members
    -------
    path : str
        Path of the serial port, a link to the pseudo-terminal; it does not change when the cable is plugged in again.
    """

    def __init__(self, library: Library, *, clock: int, baud: int, frequency: float | None = None, delay: int = 0,
                 faults: Faults | None = None):
        divisor = math.gcd(clock, baud)
        self._library = _load(library.path)
        self._board = ctypes.c_void_p(self._library.board_create(baud // divisor, clock // divisor, delay))
        if not self._board:
            raise RuntimeError(f"The board could not be created: {self._library.board_error().decode()}")
        self.frequency = 3e6 * clock / baud if frequency is None else frequency
        self._rested = 0.0
        self._ended = math.inf
        self._cables = _Cable(faults, 0), _Cable(faults, 1)
        self._folder = tempfile.TemporaryDirectory(prefix="gradring-board-")
        self.path = str(Path(self._folder.name) / "tty")
        self._lock = threading.Lock()
        self._master: int | None = None
        self._closing = False
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self.plug()
        self._thread = threading.Thread(target=self._run, name="simulated board", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    @property
    def cycle(self) -> int:
        """Number of simulated cycles so far."""
        if not self._board:
            return self._cycles
        result: int = self._library.board_cycle(self._board)
        return result

    def time(self) -> float:
        """Board time in seconds, counted in cycles while the board is busy and otherwise in real time.

        Work takes as long as on a real board, regardless of the simulation speed.
        """
        return self.cycle / self.frequency + self._rested + max(0.0, time.monotonic() - self._ended)

    @property
    def flipped(self) -> int:
        """Number of bytes corrupted in transit, in both directions."""
        return sum(cable.flipped for cable in self._cables)

    @property
    def dropped(self) -> int:
        """Number of bytes lost in transit, in both directions."""
        return sum(cable.dropped for cable in self._cables)

    def set_faults(self, faults: Faults | None) -> None:
        """Set the faults of the cable from now on."""
        with self._lock:
            self._cables = _Cable(faults, 0), _Cable(faults, 1)

    def plug(self) -> None:
        """Plug the serial cable in. The board keeps its state while the cable is unplugged."""
        master, slave = pty.openpty()
        tty.setraw(slave)
        os.set_blocking(master, False)
        # The port exists only while a process has it open; this process holds it open until another does.
        link = Path(self._folder.name) / "link"
        link.symlink_to(os.ttyname(slave))
        with self._lock:
            if self._master is not None:
                os.close(master)
                os.close(slave)
                link.unlink()
                raise ValueError("Cable must be unplugged before it is plugged in again")
            self._master, self._slave = master, slave
            link.replace(self.path)
        self._nudge()

    def unplug(self) -> None:
        """Unplug the cable: the port disappears and all bytes in flight are lost."""
        with self._lock:
            if self._master is not None:
                os.close(self._master)
                os.close(self._slave)
                self._master = None
                Path(self.path).unlink()
        self._nudge()

    def close(self) -> None:
        """End the simulation and free its resources."""
        if self._board:
            self._closing = True
            self._nudge()
            self._thread.join()
            self.unplug()
            with self._lock:
                self._cycles = self.cycle
                self._library.board_destroy(self._board)
                self._board.value = None
            os.close(self._wake)
            os.close(self._waker)
            self._folder.cleanup()

    def _nudge(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"x")

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._ended = time.monotonic()

    def _serve(self) -> None:
        pending = b""  # bytes in flight to the host
        while not self._closing:
            busy = bool(self._library.board_busy(self._board))
            begun = time.monotonic()
            reading = [self._wake] if self._master is None else [self._wake, self._master]
            try:
                ready, _, _ = select.select(reading, [], [], 0 if busy else _REST)
            except (OSError, ValueError):  # unplugged in the meantime
                ready = []
            if not busy:  # the limit keeps a delay of this thread from counting as idle time of the board
                self._rested += min(time.monotonic() - begun, _REST)
            if self._wake in ready:
                os.read(self._wake, 4096)
            with self._lock:
                if self._master is None:
                    pending = b""
                else:
                    self._take(self._master)
            if self._library.board_run(self._board, _STEP) < 0:
                raise RuntimeError(f"Simulation failed: {self._library.board_error().decode()}")
            with self._lock:
                count = self._library.board_waiting(self._board)
                if count:
                    data = ctypes.create_string_buffer(count)
                    self._library.board_receive(self._board, data, count)
                    pending += self._cables[1].pass_on(data.raw)
                if self._master is not None:
                    pending = self._give(self._master, pending)

    def _take(self, master: int) -> None:
        try:
            received = os.read(master, 65536)
        except OSError:  # no data available
            return
        data = self._cables[0].pass_on(received)
        self._library.board_send(self._board, data, len(data))

    @staticmethod
    def _give(master: int, pending: bytes) -> bytes:
        if pending:
            try:
                return pending[os.write(master, pending):]
            except OSError:  # the terminal's buffer is full
                pass
        return pending


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    board, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    for name, result, arguments in (
        ("error", ctypes.c_char_p, []),
        ("create", board, [u32, u32, u64]),
        ("destroy", None, [board]),
        ("cycle", u64, [board]),
        ("busy", ctypes.c_int32, [board]),
        ("send", None, [board, ctypes.c_char_p, u64]),
        ("run", ctypes.c_int64, [board, u64]),
        ("waiting", u64, [board]),
        ("receive", None, [board, ctypes.c_void_p, u64]),
    ):
        function = getattr(library, f"board_{name}")
        function.restype = result
        function.argtypes = arguments
    return library
