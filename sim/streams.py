"""Stream drivers for cocotb, and the stall patterns used by all stream tests.

A read after a rising edge returns the value before the edge, and a write takes effect after it, so a driver samples
and then drives once per cycle. Handles are looked up only once.

Example
-------
::

    @cocotb.test(timeout_time=1, timeout_unit="ms")
    async def passes_words(dut):
        await start(dut)
        source = Source(dut, "i", word_layout(), stalls=stalls("geometric", seed=1))
        sink = Sink(dut, "o", word_layout(), stalls=stalls("freeze", seed=2))
        monitor = Monitor(dut, "o", word_layout())
        cocotb.start_soon(source.send([{"data": 7, "last": 0}, {"data": 8, "last": 1}]))
        assert await sink.receive(2) == [{"data": 7, "last": 0}, {"data": 8, "last": 1}]
        assert len(monitor.beats) == 2
"""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge

from sim.payload import from_int, to_int

__all__ = ["STALLS", "Monitor", "Sink", "Source", "cycles", "stall_array", "stalls", "start"]

#: Names of the stall patterns.
STALLS = ("none", "geometric", "freeze", "alternating")

#: Number of cycles without progress after which a driver gives up.
PATIENCE = 20_000


def stalls(kind: str, *, seed: int = 1, rate: float = 0.5) -> Iterator[bool]:
    """Endless stall pattern: whether a side is ready to transfer, for each cycle.

    Parameters
    ----------
    kind : str
        ``none``: always ready. ``geometric``: ready with a probability of ``rate`` in each cycle. ``freeze``: always
        ready, except during pauses of 100 to 300 cycles. ``alternating``: ready in every other cycle.
    seed : int
        Seed of the random patterns.
    rate : float
        Probability used by the geometric pattern.
    """
    if kind not in STALLS:
        raise ValueError(f"Stall pattern must be one of {', '.join(STALLS)}, not {kind!r}")
    return _pattern(kind, random.Random(seed), rate)


def _pattern(kind: str, generator: random.Random, rate: float) -> Iterator[bool]:
    if kind == "none":
        yield from itertools.repeat(True)
    while kind == "alternating":
        yield True
        yield False
    while kind == "freeze":
        yield from itertools.repeat(True, generator.randint(1, 150))
        yield from itertools.repeat(False, generator.randint(100, 300))
    while kind == "geometric":
        yield generator.random() < rate


def stall_array(kind: str, count: int, *, seed: int = 1, rate: float = 0.5) -> np.ndarray:
    """First ``count`` cycles of :func:`stalls`, for lockstep runs."""
    return np.fromiter(itertools.islice(stalls(kind, seed=seed, rate=rate), count), dtype=bool, count=count)


async def cycles(dut: Any, count: int) -> None:
    """Wait for ``count`` rising edges."""
    edge = RisingEdge(dut.clk)
    for _ in range(count):
        await edge


async def start(dut: Any, *, reset: int = 2) -> None:
    """Start the clock and hold reset for ``reset`` cycles. Undriven inputs are zero."""
    Clock(dut.clk, 2, unit="ns").start()
    dut.rst.value = 1
    await cycles(dut, reset)
    dut.rst.value = 0


class _Port:
    def __init__(self, dut: Any, name: str, layout: Any) -> None:
        self._name = name
        self._layout = layout
        self._edge = RisingEdge(dut.clk)
        self._valid = getattr(dut, f"{name}__valid")
        self._ready = getattr(dut, f"{name}__ready")
        self._payload = getattr(dut, f"{name}__payload")

    def _stuck(self, done: int) -> TimeoutError:
        state = f"valid {int(self._valid.value)}, ready {int(self._ready.value)}"
        return TimeoutError(f"Stream {self._name}: nothing moved in {PATIENCE} cycles, after {done} beats ({state})")


class Source(_Port):
    """Driver that offers beats and obeys the handshake rules. Between offers, the payload is random.

    Parameters
    ----------
    dut : handle
        Top module of the design, with a port ``clk``.
    name : str
        Flattened name of the stream, without ``__valid``.
    layout : ShapeLike
        Layout of the payload; beats are mappings from field names to values, or numbers.
    stalls : iterator of bool or None
        Whether an offer may begin, for each cycle; by default always.
    """

    def __init__(self, dut: Any, name: str, layout: Any, *, stalls: Iterator[bool] | None = None) -> None:
        super().__init__(dut, name, layout)
        self._stalls = itertools.repeat(True) if stalls is None else stalls
        self._noise = random.Random(name)
        self._idle()

    def _idle(self) -> None:
        self._valid.value = 0
        self._payload.value = self._noise.getrandbits(len(self._payload))

    async def send(self, beats: Iterable[Any]) -> None:
        """Offer the beats in order; return one cycle after the last one has been accepted."""
        for done, beat in enumerate(beats):
            bits = to_int(self._layout, beat)
            if not next(self._stalls):
                self._idle()
                await self._edge
                while not next(self._stalls):
                    await self._edge
            self._valid.value = 1
            self._payload.value = bits
            for _ in range(PATIENCE):
                await self._edge
                if self._ready.value:
                    break
            else:
                raise self._stuck(done)
        self._idle()


class Sink(_Port):
    """Driver that accepts beats.

    Parameters
    ----------
    dut, name, layout
        See :class:`Source`.
    stalls : iterator of bool or None
        Whether the sink is ready, for each cycle of a receive call; by default always. Outside calls, it is never
        ready.
    """

    def __init__(self, dut: Any, name: str, layout: Any, *, stalls: Iterator[bool] | None = None) -> None:
        super().__init__(dut, name, layout)
        self._stalls = itertools.repeat(True) if stalls is None else stalls
        self._ready.value = 0

    async def receive(self, count: int | None = None, *, until: Callable[[Any], bool] | None = None) -> list[Any]:
        """Receive ``count`` beats, or all beats up to and including the first one that satisfies ``until``."""
        beats: list[Any] = []
        waited = 0
        while len(beats) != count:
            ready = next(self._stalls)
            self._ready.value = ready
            await self._edge
            if ready and self._valid.value:
                beats.append(from_int(self._layout, int(self._payload.value)))
                waited = 0
                if until is not None and until(beats[-1]):
                    break
            elif waited == PATIENCE:
                raise self._stuck(len(beats))
            else:
                waited += 1
        self._ready.value = 0
        return beats

    async def packet(self) -> list[Any]:
        """Receive beats up to and including the next one with ``last`` set."""
        return await self.receive(until=lambda beat: bool(beat["last"]))


class Monitor(_Port):
    """Monitor that records the transfers of a stream and fails the test if the handshake is violated.

    It samples at the falling edge, when the values for the next rising edge have settled. Each beat is therefore in
    :attr:`beats` before any driver sees its transfer.

    Members
    -------
    beats : list
        Transferred beats.
    cycles : list of int
        Cycle of each transfer, counted from the monitor's construction.
    """

    def __init__(self, dut: Any, name: str, layout: Any) -> None:
        super().__init__(dut, name, layout)
        self._edge = FallingEdge(dut.clk)
        self._reset = dut.rst
        self.beats: list[Any] = []
        self.cycles: list[int] = []
        cocotb.start_soon(self._watch())

    async def _watch(self) -> None:
        held: int | None = None
        for cycle in itertools.count():
            await self._edge
            if self._reset.value:
                held = None
                continue
            if not self._valid.value:
                if held is not None:
                    raise AssertionError(f"Stream {self._name}: valid fell in cycle {cycle} before ready came")
                continue
            bits = int(self._payload.value)
            if held is not None and bits != held:
                raise AssertionError(f"Stream {self._name}: payload changed from {held:#x} to {bits:#x} in cycle "
                                     f"{cycle} before ready came")
            if self._ready.value:
                self.beats.append(from_int(self._layout, bits))
                self.cycles.append(cycle)
                held = None
            else:
                held = bits
