"""Environment variables from ``mpirun`` with the number of a process."""

import os

__all__ = ["mpi_rank", "mpi_size"]

#: Number of all processes, and own number: of Open MPI, then of MPICH and other implementations.
_SIZES, _RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def mpi_size() -> int:
    """Number of processes that ``mpirun`` has started, this one among them; 1 without it."""
    return _number(_SIZES, 1)


def mpi_rank() -> int:
    """Number of this process among them; 0 without ``mpirun``."""
    return _number(_RANKS, 0)


def _number(names: tuple[str, ...], default: int) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), default)
