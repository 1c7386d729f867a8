"""Exchange between processes that each simulate part of one ring, through shared memory or MPI.

Both methods are small libraries that implement ``ring_exchange.h`` and are built on first use.
"""

import ctypes
import functools
import os
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.verilated import toolchain

__all__ = ["Exchange", "MpiExchange", "Part", "SharedExchange"]

_HERE = Path(__file__).parent
_FLAGS = ("-std=gnu++20", "-O2", "-fPIC", "-fvisibility=hidden", "-shared")


class Exchange:
    """Exchange of messages between processes.

    Members
    -------
    process, processes : int
        Index of this process, and total number of processes.
    """

    def __init__(self, library: ctypes.CDLL, context: int | None, process: int, processes: int) -> None:
        if not context:
            raise toolchain.ToolError(f"Processes cannot exchange words: {_why(library)}")
        self.library, self.context = library, ctypes.c_void_p(context)
        self.process, self.processes = process, processes

    def agree(self, value: int) -> int:
        """Return the maximum of the values passed by all processes; all processes must call this method."""
        agreed = ctypes.c_uint64(value)
        self._checked(self.library.exchange_agree(self.context, ctypes.byref(agreed)))
        return agreed.value

    def mail(self, messages: dict[int, bytes]) -> dict[int, bytes]:
        """Exchange messages with the given processes, which must all call this method at the same time."""
        mails = (_Mail * len(messages))(*(_Mail(process, text, len(text)) for process, text in messages.items()))
        self._checked(self.library.exchange_mail(self.context, mails, len(messages)))
        return {item.process: ctypes.string_at(item.incoming, item.incoming_bytes) for item in mails}

    def time(self, size: int, *, batches: int = 1000, times: int = 30) -> float:
        """Time in seconds to exchange ``size`` bytes with every other process (or to agree on a value if size is 0):
        the mean over the batch that was disturbed least by other programs."""
        text = bytes(size)
        peers = [process for process in range(self.processes) if size and process != self.process]
        mails = (_Mail * len(peers))(*(_Mail(process, text, size) for process in peers))
        costs = [int(self.library.exchange_repeat(self.context, mails, len(peers), times)) for _ in range(batches)]
        self._checked(min(costs))
        return min(costs) * 1e-9

    @property
    def used(self) -> float:
        """CPU seconds that this process has spent in exchanges so far, including waiting."""
        return float(self.library.exchange_used(self.context) * 1e-9)

    def _checked(self, result: int) -> None:
        if result < 0:
            raise RuntimeError(self.library.exchange_error(self.context).decode())

    def first_ended(self) -> int | None:
        """Index of the process that ended first, if this process knows of one; None if all are running."""
        return None

    def close(self) -> None:
        """Leave the exchange and free its resources."""
        if self.context:
            self.library.exchange_close(self.context)
            self.context.value = None


class SharedExchange(Exchange):
    """Exchange between processes of one host, through shared memory.

    Parameters
    ----------
    descriptor : int
        Descriptor of the memory, from :meth:`create` in this or another process; the exchange closes it.
    process, processes : int
    """

    def __init__(self, descriptor: int, process: int, processes: int) -> None:
        library = _shared()
        super().__init__(library, library.exchange_open(descriptor, process, processes), process, processes)

    @staticmethod
    def create(processes: int) -> int:
        """Create anonymous memory that is freed when its last user closes it; return its descriptor."""
        descriptor: int = _shared().exchange_create(processes)
        if descriptor < 0:
            raise toolchain.ToolError(f"Processes cannot exchange words: {_why(_shared())}")
        return descriptor

    def first_ended(self) -> int | None:
        ended: int = self.library.exchange_ended(self.context)
        return None if ended < 0 else ended


class MpiExchange(Exchange):
    """Exchange through MPI between processes started by ``mpirun``; all must create it at the same time."""

    def __init__(self) -> None:
        from mpi4py import MPI

        library = _load(_built("exchange_mpi.cpp", [_mpi_compiler()], MPI.Get_library_version()))
        world = MPI.COMM_WORLD
        super().__init__(library, library.exchange_open(), world.rank, world.size)


class _Mail(ctypes.Structure):
    _fields_ = [("process", ctypes.c_uint32), ("outgoing", ctypes.c_char_p), ("outgoing_bytes", ctypes.c_uint64),
                ("incoming", ctypes.c_void_p), ("incoming_bytes", ctypes.c_uint64)]


class _RingPart(ctypes.Structure):
    _fields_ = [("process", ctypes.c_uint32), ("processes", ctypes.c_uint32), ("bounds", ctypes.c_void_p),
                *((name, ctypes.c_void_p) for name in ("context", "mail", "agree", "error"))]


class Part:
    """Part of a ring: the nodes that this process simulates, and the exchange with the other processes.

    Parameters
    ----------
    bounds : sequence of int
        Index of each process's first node, followed by the total number of nodes.
    exchange : Exchange

    Members
    -------
    nodes : range
        Nodes in this process.
    structure : ctypes.Structure
        The part in the format required by ``ring_create``.
    """

    def __init__(self, bounds: Sequence[int], exchange: Exchange) -> None:
        if len(bounds) != exchange.processes + 1 or sorted(set(bounds)) != list(bounds):
            raise ValueError(f"Each of {exchange.processes} processes must have at least one node, not {bounds!r}")
        self.nodes = range(bounds[exchange.process], bounds[exchange.process + 1])
        self._bounds = (ctypes.c_uint32 * len(bounds))(*bounds)
        functions = [ctypes.cast(getattr(exchange.library, f"exchange_{name}"), ctypes.c_void_p)
                     for name in ("mail", "agree", "error")]
        self.structure = _RingPart(exchange.process, exchange.processes, ctypes.addressof(self._bounds),
                                   exchange.context, *functions)


def _why(library: ctypes.CDLL) -> str:
    return str(library.exchange_why().decode()) if hasattr(library, "exchange_why") else "MPI has no room for it"


@functools.cache
def _shared() -> ctypes.CDLL:
    return _load(_built("exchange_shared.cpp", [toolchain.compiler()], toolchain.target()))


def _mpi_compiler() -> str:
    """Return the compiler used by mpi4py's MPI; the one in the environment takes precedence."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    compiler = shutil.which("mpicxx", path=path)
    if compiler is None:
        raise toolchain.ToolError("mpicxx is needed to compile the way between processes and is not on PATH; "
                                  "'make .venv/.mpi' installs it")
    return compiler


def _built(name: str, command: list[str], version: str) -> Path:
    files = toolchain.sources([_HERE / name, *sorted(_HERE.glob("*exchange*.h"))])
    key = toolchain.digest(repr(files), repr(_FLAGS), version, toolchain.target(), toolchain.source(_built))

    def build(folder: Path) -> None:
        for file, text in files.items():
            (folder / file).write_text(text)
        toolchain.run([*command, *_FLAGS, name, "-o", "exchange.so"], cwd=folder,
                      env={**os.environ, "OMPI_CXX": toolchain.compiler(), "MPICH_CXX": toolchain.compiler()})

    return toolchain.cached(toolchain.cache_folder("verilated") / f"exchange-{key}", build) / "exchange.so"


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    context, i32, u32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64
    functions: dict[str, tuple[Any, list[Any]]] = {
        "mail": (i64, [context, ctypes.c_void_p, u32]),
        "agree": (i64, [context, ctypes.c_void_p]),
        "error": (ctypes.c_char_p, [context]),
        "used": (ctypes.c_uint64, [context]),
        "repeat": (i64, [context, ctypes.c_void_p, u32, ctypes.c_uint64]),
        "close": (None, [context]),
        "open": (context, []),
    }
    if hasattr(library, "exchange_create"):  # shared memory
        functions |= {"open": (context, [i32, u32, u32]), "create": (i32, [u32]), "ended": (i32, [context]),
                      "why": (ctypes.c_char_p, [])}
    for name, (result, arguments) in functions.items():
        function = getattr(library, f"exchange_{name}")
        function.restype = result
        function.argtypes = arguments
    return library
