"""Environment variables with process numbers, which ``mpirun`` sets."""

import os

__all__ = ["mpi_rank", "mpi_size"]

#: Variables with the number of processes and the process's rank: first for Open MPI, then for MPICH and others.
_SIZES, _RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def mpi_size() -> int:
    """Number of processes started by ``mpirun``, including this one; 1 without ``mpirun``."""
    return _number(_SIZES, 1)


def mpi_rank() -> int:
    """Rank of this process among those started by ``mpirun``; 0 without ``mpirun``."""
    return _number(_RANKS, 0)


def _number(names: tuple[str, ...], default: int) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), default)
