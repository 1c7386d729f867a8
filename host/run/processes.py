"""Simulation processes, on this machine or started by ``mpirun``."""

import functools
from typing import TYPE_CHECKING

from host.console import thread_count
from sim.verilated.mpi_environment import mpi_rank, mpi_size

if TYPE_CHECKING:
    from sim.verilated.part_server import Processes

__all__ = ["check_alone", "other_processes", "serves", "threads_of"]


def serves() -> bool:
    """In all ``mpirun`` processes except the first, serve the first process until it exits, and return True. In the
    first or only process, return False immediately. Call this before anything that may fail, so that the first
    process always releases all processes."""
    if mpi_size() == 1:
        return False
    from sim.verilated.mpi_processes import serve_mpi

    if mpi_rank():
        serve_mpi()
        return True
    _mpi_processes()
    return False


@functools.cache
def _mpi_processes() -> "Processes":
    from sim.verilated.mpi_processes import MpiProcesses

    return MpiProcesses()


def check_alone(what: str) -> None:
    """Raise ``ValueError`` if ``mpirun`` has started several processes for ``what``, which needs one."""
    if mpi_size() > 1:
        raise ValueError(f"{what} must be in one process, not in the {mpi_size()} that mpirun has started")


def other_processes(count: int | None, *, nodes: int) -> "Processes | None":
    """Return the requested processes, or None if only this process simulates. Raises ``ValueError`` if a process
    would have no node, or if ``mpirun`` has started a different number of processes."""
    started = mpi_size()
    if count is not None and started > 1 and count != started:
        raise ValueError(f"Processes must be the {started} that mpirun has started, not {count!r}")
    number = started if count is None else count
    if not 1 <= number <= nodes:
        raise ValueError(f"Processes must be between 1 and {nodes}, the number of nodes, not {number!r}")
    if number == 1:
        return None
    if started > 1:
        return _mpi_processes()
    from sim.verilated.part_processes import LocalProcesses

    return LocalProcesses(number)


def threads_of(count: int | None, nodes: int, processes: "Processes | None") -> int:
    """Return the number of threads per process. By default, several processes have 1 thread each."""
    return thread_count(1 if processes is not None and count is None else count, nodes)
