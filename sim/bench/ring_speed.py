# amaranth: UnusedElaboratable=no
"""Benchmark the Verilated ring against the same ring and host traffic driven by cocotb.

Both simulations use the same Verilog, Verilator version and link latency, and must return identical responses,
including the cycle counts of commands. ``python -m sim.bench.ring_speed`` prints the figures.
"""

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from cocotb.utils import get_sim_time

from hdl.config import Memories, NodeConfig
from hdl.control.protocol import DESCRIPTOR_WORDS, Opcode, Operation, Space, command_layout, header_layout
from hdl.control.registers import register
from hdl.node import Node
from hdl.ring.ports import joined
from hdl.ring.topology import RingTopology
from hdl.streams.stream import word_layout
from sim import json_files, regression
from sim.payload import to_int
from sim.streams import Sink, Source, start
from sim.verilated.build import build_ring
from sim.verilated.native import Arithmetic
from sim.verilated.ring import VerilatedRing

__all__ = ["CONFIG", "PATIENCE", "ClosedRing", "Speed", "measure", "requests", "rows"]

NODES = 4
LENGTH = 1024
LATENCY = 16

#: Memories are as short as possible, because cocotb's Verilator model has a line of C++ per initial word.
CONFIG = NodeConfig(memories=Memories(gradient=LENGTH, weight=LENGTH, state=LENGTH))

#: Minimum cycles per second of the Verilated ring, and its minimum speedup over cocotb.
BAR = 100_000
RATIO_BAR = 10

#: Minimum speedup of joint evaluation of nodes over one thread, and over evaluating nodes one after another with the
#: same number of threads, both keyed by number of threads.
THREADS_BAR = {2: 1.4}
BATCH_BAR = {1: 1.35, 2: 1.15}
#: Minimum speed with native arithmetic relative to gateware arithmetic on the same number of threads.
NATIVE_BAR = 1.0
#: Names of the compared libraries: joint evaluation of nodes, sequential evaluation, and native arithmetic.
_TOGETHER, _APART, _NATIVE = "together", "apart", "native"
_OPTIONS: dict[str, dict[str, Any]] = {
    _TOGETHER: {}, _APART: {"batched": False}, _NATIVE: {"arithmetic": Arithmetic.NATIVE}}
#: Minimum speedup of two threads over one while another process is busy; number of rounds; seconds per round.
CROWDED_BAR, CROWDED_TURNS, CROWDED_SECONDS = 0.9, 3, 5.0

#: Cycles within which the traffic must end.
PATIENCE = 100_000


class ClosedRing(wiring.Component):
    """A ring of nodes and links, entirely in gateware.

    Parameters
    ----------
    node : callable
        Function that creates a node.
    nodes : int
        Ring size.
    latency : int
        Latency of words and credits from node to node, in cycles.

    Members
    -------
    host_i_<k>, host_o_<k> : In, Out(stream of word_layout())
        Host port of node k.
    """

    def __init__(self, node: Callable[[], wiring.Component], *, nodes: int, latency: int) -> None:
        self._node = node
        self._nodes = nodes
        self._latency = latency
        words = stream.Signature(word_layout())
        super().__init__({
            **{f"host_i_{index}": In(words) for index in range(nodes)},
            **{f"host_o_{index}": Out(words) for index in range(nodes)},
        })

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        nodes = [self._node() for _ in range(self._nodes)]
        for index, node in enumerate(nodes):
            m.submodules[f"node_{index}"] = node
            wiring.connect(m, host=wiring.flipped(getattr(self, f"host_i_{index}")), node=node.host_i)
            wiring.connect(m, node=node.host_o, host=wiring.flipped(getattr(self, f"host_o_{index}")))
            source, target = node.ring_o, nodes[RingTopology(self._nodes).successor(index)].ring_i
            for _ in range(self._latency - 1):
                between = source.signature.create()
                m.d.sync += joined(source, between)
                source = between
            m.d.sync += joined(source, target)
        return m


@dataclasses.dataclass(frozen=True)
class Speed:
    """Simulation speeds in cycles per second.

    Members
    -------
    verilated : dict
        Median speed of the Verilated ring over several runs, keyed by number of threads.
    apart : dict
        Median speed with nodes evaluated one after another, keyed by number of threads; empty unless requested.
    native : dict
        Median speed with native arithmetic, keyed by number of threads; empty unless requested.
    cocotb : float
        Speed of the ring under cocotb.
    cycles : int
        Duration of the traffic, in simulated cycles.
    seconds : dict
        Time taken by each stage of building the Verilated ring.
    crowded : dict
        Speed, keyed by number of threads, while another process keeps one of two cores busy; empty unless requested
        and possible.
    """

    verilated: dict[int, float]
    apart: dict[int, float]
    native: dict[int, float]
    cocotb: float
    cycles: int
    seconds: dict[str, float]
    crowded: dict[int, float] = dataclasses.field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return max(self.verilated.values()) / self.cocotb


def requests(rank: int, nodes: int) -> list[list[int]]:
    """Return one node's requests: load gradients, run a fused update, read weights."""
    def request(opcode: Opcode, count: int, *words: int) -> list[int]:
        return [to_int(header_layout(), {"opcode": opcode, "tag": 0, "count": count}), *words]

    random = np.random.default_rng(rank)
    gradients = random.standard_normal(LENGTH).astype(np.float32)
    gradients[random.random(LENGTH) < 0.5] = 0
    fields = {"operation": Operation.FUSED_UPDATE, "rank": rank, "size": nodes, "length": LENGTH, "stride": 1}
    command = to_int(command_layout(), {name: fields.get(name, 0) for name, _ in command_layout()})
    rate = np.float32(0.125).view(np.uint32)
    return [
        request(Opcode.WRITE_REGISTER, 1, register("LEARNING_RATE").address, int(rate)),
        request(Opcode.WRITE_MEMORY, LENGTH, Space.GRADIENT << 28, *gradients.view(np.uint32).tolist()),
        request(Opcode.PUSH_COMMAND, DESCRIPTOR_WORDS,
                *(command >> 32 * word & 0xFFFF_FFFF for word in range(DESCRIPTOR_WORDS))),
        request(Opcode.POP_EVENT, 4, PATIENCE),
        request(Opcode.READ_MEMORY, LENGTH, Space.WEIGHT << 28),
    ]


@cocotb.test(timeout_time=1, timeout_unit="sec")
async def drive(dut: Any) -> None:
    """Send the traffic of all nodes concurrently under cocotb, and write the outcome to a file."""
    await start(dut)
    begun, first = time.perf_counter(), get_sim_time("ns")
    receivers = []
    nodes = regression.parameters()["nodes"]
    for rank in range(nodes):
        traffic = requests(rank, nodes)
        words = [word | (index == len(packet) - 1) << 32
                 for packet in traffic for index, word in enumerate(packet)]
        source = Source(dut, f"host_i_{rank}", word_layout())
        sink = Sink(dut, f"host_o_{rank}", word_layout())
        cocotb.start_soon(source.send(words))
        receivers.append(cocotb.start_soon(_responses(sink, len(traffic))))
    responses = [await receiver for receiver in receivers]
    seconds = time.perf_counter() - begun
    cycles = round((get_sim_time("ns") - first) / 2)
    result = {"responses": responses, "cycles": cycles, "seconds": seconds}
    Path(regression.parameters()["result"]).write_text(json.dumps(result))


async def _responses(sink: Sink, count: int) -> list[list[int]]:
    return [[beat["data"] for beat in await sink.packet()] for _ in range(count)]


def _run(ring: VerilatedRing, nodes: int) -> list[list[list[int]]]:
    """Run the same traffic on the Verilated ring and return each node's responses."""
    traffic = [requests(rank, nodes) for rank in range(nodes)]
    for rank, packets in enumerate(traffic):
        for packet in packets:
            ring.send(rank, packet)
    result: list[list[list[int]]] = [[] for _ in traffic]
    for rank, packets in enumerate(traffic):
        for _ in packets:
            ring.run(PATIENCE, until_packet_at=rank)
            response = ring.receive(rank)
            if response is None:
                raise TimeoutError(f"The traffic did not end within {PATIENCE} cycles\n{ring.describe()}")
            result[rank].append(response.tolist())
    return result


def measure(config: NodeConfig = CONFIG, *, nodes: int = NODES, threads: tuple[int, ...] = (1, 2),
            repetitions: int = 15, compared: bool = False,
            announce: Callable[[str], None] = lambda stage: None) -> Speed:
    """Simulate the traffic with Verilator and with cocotb, and compare the responses.

    Parameters
    ----------
    config : NodeConfig
        Configuration of every node.
    nodes : int
        Nodes in the ring.
    threads : tuple of int
        Thread counts to measure the Verilated ring with.
    repetitions : int
        Number of runs to take the median of.
    compared : bool
        Also measure sequential evaluation of the nodes and native arithmetic, alternating with the default, and the
        ring while a second process is busy.
    announce : callable
        Called with the name of each stage as it begins.

    Raises
    ------
    AssertionError
        Two simulations returned different responses, or two with the same arithmetic ended in different states.
    """
    libraries = {kind: build_ring(Node(config), identity=f"Node({config})", announce=announce, **options)
                 for kind, options in _OPTIONS.items() if compared or kind == _TOGETHER}
    medians: dict[str, dict[int, float]] = {kind: {} for kind in _OPTIONS}
    outcomes, states = [], []
    with contextlib.ExitStack() as opened:
        rings = {kind: opened.enter_context(VerilatedRing(library, nodes=nodes))
                 for kind, library in libraries.items()}
        for ring in rings.values():
            for link in ring.links:
                link.set_latency(data=LATENCY, credit=LATENCY)
        for count in threads:
            announce(f"ring, threads: {count}")
            speeds: dict[str, list[float]] = {kind: [] for kind in rings}
            for _ in range(repetitions):
                for kind, ring in rings.items():
                    ring.set_threads(count)
                    ring.reset()
                    begun = time.perf_counter()
                    responses = _run(ring, nodes)
                    speeds[kind].append(ring.cycle / (time.perf_counter() - begun))
                    ring.run(-ring.cycle % LATENCY)
                    outcomes.append((responses, ring.cycle))
                    if kind != _NATIVE:
                        states.append(ring.save().removeprefix(ring.header))
            for kind, values in speeds.items():
                medians[kind][count] = statistics.median(values)
        crowded: dict[int, float] = {}
        if compared:
            announce("ring, beside a busy process")
            crowded = _crowded(rings[_TOGETHER], nodes)
    if any(outcome != outcomes[0] for outcome in outcomes) or any(state != states[0] for state in states):
        raise AssertionError("Rings of nodes that are evaluated together and one after the other, or by native "
                             "arithmetic, gave different responses, or left different states")

    announce("cocotb")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        regression.run(ClosedRing(lambda: Node(config), nodes=nodes, latency=LATENCY), module="sim.bench.ring_speed",
                       parameters={"result": str(path), "nodes": nodes})
        under_cocotb = json_files.read_product(path)
    if under_cocotb["responses"] != responses:
        raise AssertionError("The Verilated ring and the ring under cocotb gave different responses")
    return Speed(medians[_TOGETHER], medians[_APART], medians[_NATIVE],
                 under_cocotb["cycles"] / under_cocotb["seconds"], under_cocotb["cycles"],
                 libraries[_TOGETHER].seconds, crowded)


def _crowded(ring: VerilatedRing, nodes: int) -> dict[int, float]:
    """Measure the speed with one and two threads on two cores while another process keeps one of them busy."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        return {}
    results: dict[int, list[float]] = {1: [], 2: []}
    os.sched_setaffinity(0, set(sorted(cores)[:2]))
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for _ in range(CROWDED_TURNS):
            for count, speeds in results.items():
                ring.set_threads(count)
                begun, cycles = time.perf_counter(), 0
                while time.perf_counter() - begun < CROWDED_SECONDS:
                    ring.reset()
                    _run(ring, nodes)
                    cycles += ring.cycle
                speeds.append(cycles / (time.perf_counter() - begun))
    finally:
        busy.kill()
        busy.wait()
        os.sched_setaffinity(0, cores)
    return {count: statistics.median(speeds) for count, speeds in results.items()}


def rows(speed: Speed) -> list[dict[str, Any]]:
    """Return the rows for ``bench.json``, as time per cycle because lower values are better in all rows."""
    result = []
    for threads, cycles in speed.verilated.items():
        result.append(_row(f"N={NODES}, threads={threads}, {cycles:,.0f} cycles/s", cycles, BAR))
    for threads, cycles in speed.apart.items():
        together = speed.verilated[threads]
        result.append(_row(f"N={NODES}, threads={threads}, {together / cycles:.2f} x nodes one after the other",
                           together, BATCH_BAR[threads] * cycles))
    for threads, cycles in speed.native.items():
        gateware = speed.verilated[threads]
        result.append(_row(f"N={NODES}, threads={threads}, native arithmetic {cycles:,.0f} cycles/s, "
                           f"{cycles / gateware:.2f} x gateware", cycles, NATIVE_BAR * gateware))
    for threads, bar in THREADS_BAR.items():
        if {1, threads} <= speed.verilated.keys():
            single, several = speed.verilated[1], speed.verilated[threads]
            result.append(_row(f"N={NODES}, {threads} threads {several / single:.2f} x one", several, bar * single))
    if speed.crowded:
        single, two = speed.crowded[1], speed.crowded[2]
        result.append(_row(f"N={NODES}, beside a busy process: 2 threads {two / single:.2f} x one", two,
                           CROWDED_BAR * single))
    best = max(speed.verilated.values())
    result.append(_row(f"N={NODES}, {speed.ratio:,.0f} x cocotb's {speed.cocotb:,.0f} cycles/s", best,
                       RATIO_BAR * speed.cocotb))
    return result


def _row(config: str, cycles: float, bar: float) -> dict[str, Any]:
    return {"name": "simulation.ring", "config": config, "measured": 1e6 / cycles, "bound": 1e6 / bar,
            "ratio": bar / cycles, "unit": "us/cycle"}


def main() -> None:
    speed = measure(compared=True, announce=print)
    print(f"build: {', '.join(f'{stage} {seconds:.1f} s' for stage, seconds in speed.seconds.items())}")
    for threads, cycles in speed.verilated.items():
        print(f"Verilated ring of {NODES} nodes, threads: {threads}: {cycles:,.0f} cycles/s, "
              f"{cycles / speed.apart[threads]:.2f} x nodes one after the other; with native arithmetic "
              f"{speed.native[threads]:,.0f}, {speed.native[threads] / cycles:.2f} x gateware")
    if speed.crowded:
        print(f"beside a busy process: 1 thread {speed.crowded[1]:,.0f} cycles/s, 2 threads {speed.crowded[2]:,.0f}")
    print(f"cocotb, {speed.cycles} cycles: {speed.cocotb:,.0f} cycles/s; ratio {speed.ratio:.0f}")


if __name__ == "__main__":
    main()
