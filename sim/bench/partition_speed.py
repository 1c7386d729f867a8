# amaranth: UnusedElaboratable=no
"""Speed of a ring in several processes, compared with the same ring in one single-threaded process.

``python -m sim.bench.partition_speed`` uses shared memory between the processes, and ``mpirun -n 2 python -m
sim.bench.partition_speed`` uses MPI. Words and cycles must be identical.

If other programs use the cores, wall time is not meaningful. Each process therefore also reports its processor time,
excluding the exchanges, in which it waits. The longest of these processor times and the separately measured time of
an exchange give a bound on the speed on idle cores.
"""

import argparse
import statistics
import time
from typing import Any

from hdl.node import Node
from sim.bench.ring_speed import CONFIG, PATIENCE, requests
from sim.verilated.build import build_ring
from sim.verilated.mpi_environment import mpi_rank, mpi_size
from sim.verilated.part_processes import LocalProcesses
from sim.verilated.part_server import Processes
from sim.verilated.parts import PartedRing
from sim.verilated.ring import VerilatedRing

__all__ = ["measure", "rows"]

NODES, LATENCY, PROCESSES = 8, 64, 2
#: Number of fused updates in a run, and number of cycles between the host's checks for completion.
UPDATES, SLICE = 6, 4096
#: Minimum speed of two processes on two cores, relative to one process.
BAR = 1.6
#: Number of message bytes in timed exchanges: 16-byte words, in both directions.
SIZES = tuple(16 * words for words in (1, 16, 64, 256))


def _run(ring: VerilatedRing) -> list[list[list[int]]]:
    """Run fused updates that are all queued at the beginning; return the responses of each node."""
    traffic = [requests(rank, ring.nodes) * UPDATES for rank in range(ring.nodes)]
    for rank, packets in enumerate(traffic):
        for packet in packets:
            ring.send(rank, packet)
    while any(ring.status(rank).output_packets < len(packets) for rank, packets in enumerate(traffic)):
        ring.run(SLICE)
        if ring.cycle > UPDATES * PATIENCE:
            raise AssertionError(f"The updates did not end\n{ring.describe()}")
    received = [[ring.receive(rank) for _ in packets] for rank, packets in enumerate(traffic)]
    return [[response.tolist() for response in responses if response is not None] for responses in received]


def measure(*, nodes: int = NODES, latency: int = LATENCY, repetitions: int = 5,
            processes: Processes | None = None) -> dict[str, Any]:
    """Measure one process and several, alternating, in cycles per second of wall and processor time.

    Raises
    ------
    AssertionError
        If the responses or the cycle counts differ.
    """
    processes = LocalProcesses(PROCESSES) if processes is None else processes
    library = build_ring(Node(CONFIG), identity=f"Node({CONFIG})")
    solo: list[tuple[float, float]] = []
    many: list[tuple[float, float]] = []
    with VerilatedRing(library, nodes=nodes) as alone, \
            PartedRing(library, nodes=nodes, processes=processes) as parted:
        exchanges = {size: parted.time_exchange(size) for size in (0, *SIZES)}
        for ring in (alone, parted):
            ring.set_grid(latency)
            for link in ring.links:
                link.set_latency(data=latency, credit=latency)
        for _ in range(repetitions):
            outcomes = []
            for ring in (alone, parted):
                ring.reset()
                before = parted.times()
                begun, used = time.perf_counter(), time.process_time()
                responses = _run(ring)
                seconds, busy = time.perf_counter() - begun, time.process_time() - used
                if ring is parted:
                    busy = max((now - was) - (there - then) for (now, there), (was, then)
                               in zip(parted.times(), before, strict=True))
                (many if ring is parted else solo).append((ring.cycle / seconds, ring.cycle / busy))
                outcomes.append((responses, ring.cycle))
            if outcomes[0] != outcomes[1]:
                raise AssertionError("Rings in one process and in several gave different responses, or cycles")
        cycles = alone.cycle
    walls, busys = ([statistics.median(pair[kind] for pair in speeds) for speeds in (solo, many)] for kind in (0, 1))
    return {"nodes": nodes, "latency": latency, "processes": processes.number, "cycles": cycles, "wall": walls,
            "processor": busys, "exchanges": exchanges}


def rows(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows for ``bench.json``, as time per cycle, so that lower is better, as in all rows."""
    alone, parted = figures["wall"]
    config = (f"N={figures['nodes']}, latency={figures['latency']}, {figures['processes']} processes "
              f"{parted / alone:.2f} x one")
    return [{"name": "simulation.processes", "config": config, "measured": 1e6 / parted, "bound": 1e6 / (BAR * alone),
             "ratio": BAR * alone / parted, "unit": "us/cycle"}]


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulation speed of a ring divided among several processes.")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--latency", type=int, default=LATENCY)
    parser.add_argument("--processes", type=int, default=PROCESSES, help="run without mpirun")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    if mpi_rank():
        from sim.verilated.mpi_processes import serve_mpi

        serve_mpi()
        return
    processes: Processes = LocalProcesses(options.processes)
    if mpi_size() > 1:
        from sim.verilated.mpi_processes import MpiProcesses

        processes = MpiProcesses()
    figures = measure(nodes=options.nodes, latency=options.latency, repetitions=options.repetitions,
                      processes=processes)
    for size, seconds in figures["exchanges"].items():
        print(f"{'agreement' if not size else f'exchange of {size} bytes both ways'}: {1e6 * seconds:.2f} us")
    (alone, parted), (busy, bound) = figures["wall"], figures["processor"]
    print(f"{figures['nodes']} nodes, latency {figures['latency']}, {figures['cycles']:,} cycles, the same in "
          f"{figures['processes']} processes:")
    print(f"cycles per second: one process {alone:,.0f}, several {parted:,.0f}: {parted / alone:.2f} x")
    print(f"cycles per processor second: one process {busy:,.0f}, the busiest of several, without exchanges, "
          f"{bound:,.0f}: {bound / busy:.2f} x")


if __name__ == "__main__":
    main()
