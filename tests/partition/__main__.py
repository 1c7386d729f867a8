"""``make partition``: simulate rings of whole nodes in 1, 2 and 4 processes, or in all processes of ``mpirun``. All
runs of a ring must give the same digest.
"""

import sys
from typing import Annotated

import typer

from sim.verilated.mpi_environment import mpi_rank, mpi_size
from sim.verilated.part_processes import LocalProcesses
from tests.partition.play import Case, play


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main(
    nodes: Annotated[str, typer.Option(help="Ring sizes.")] = "4,8,16",
    latencies: Annotated[str, typer.Option(help="Latencies of links in cycles.")] = "16,64,256",
    processes: Annotated[str, typer.Option(help="Number of processes on this machine, without mpirun.")] = "2,4",
) -> None:
    """Compare digests of rings in several processes with the digests of the same rings in one process."""
    if mpi_rank():
        from sim.verilated.mpi_processes import serve_mpi

        serve_mpi()
        return
    divisions = {str(number): LocalProcesses(number) for number in _numbers(processes)}
    if mpi_size() > 1:
        from sim.verilated.mpi_processes import MpiProcesses

        divisions = {f"{mpi_size()} of MPI": MpiProcesses()}
    wrong = 0
    for case in (Case(size, latency) for size in _numbers(nodes) for latency in _numbers(latencies)):
        for grid in sorted({16, case.latency}):
            want = play(case, grid=grid)
            print(f"{case.nodes} nodes, latency {case.latency}, grid {grid}: {want.digest}, {want.cycles} cycles, "
                  f"{want.faults} faults, {want.seconds:.1f} s", flush=True)
            for name, division in divisions.items():
                got = play(case, processes=division, grid=grid)
                same = (got.digest, got.cycles, got.faults) == (want.digest, want.cycles, want.faults)
                wrong += not same
                print(f"  {name} processes: {'the same' if same else f'OTHER {got}'}, {got.seconds:.1f} s",
                      flush=True)
    if wrong:
        sys.exit(f"{wrong} runs differ from those of one process")


if __name__ == "__main__":
    typer.run(main)
