"""Functions of a ring library (declared in ``ring.h``) that Python calls."""

import ctypes
from pathlib import Path
from typing import Any

__all__ = ["load"]


def load(path: Path) -> ctypes.CDLL:
    """Load a library and declare the types of its results and arguments."""
    library = ctypes.CDLL(str(path))
    ring, node, words = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p
    u32, u64, i32, i64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64
    functions: dict[str, tuple[Any, list[Any]]] = {
        "error": (ctypes.c_char_p, []),
        "ports": (u32, []),
        "replay": (i32, []),
        "far": (u32, [ring, node]),
        "far_speed": (None, [ring, node, u32, u32, u32]),
        "far_memory": (None, [ring, node, ctypes.c_void_p, ctypes.c_void_p]),
        "kind": (ctypes.c_void_p, []),
        "create": (ring, [u32, u32, words, u32, ctypes.c_void_p, ctypes.c_void_p]),
        "destroy": (None, [ring]),
        "reset": (None, [ring]),
        "set_threads": (None, [ring, u32]),
        "set_quantum": (None, [ring, u32]),
        "set_grid": (None, [ring, u32]),
        "cycle": (u64, [ring]),
        "run": (i64, [ring, u64, i32]),
        "send": (None, [ring, node, words, u64]),
        "packet_length": (i64, [ring, node]),
        "receive": (None, [ring, node, words]),
        "node_status": (None, [ring, node, ctypes.c_void_p]),
        "memories": (u32, [ring, node]),
        "memory": (None, [ring, node, u32, ctypes.c_void_p]),
        "owners": (None, [ring, node, ctypes.c_void_p]),
        "counters": (i32, [ring, node, words]),
        "link_latency": (None, [ring, u32, u32, u32]),
        "link_rate": (None, [ring, u32, u32, u32]),
        "link_cut": (None, [ring, u32, u64, u64]),
        "link_fault": (None, [ring, u32, u32, u64, u32, u32]),
        "link_random": (None, [ring, u32, u64, u64]),
        "link_faults": (None, [ring, u32, ctypes.c_void_p]),
        "link_status": (None, [ring, u32, ctypes.c_void_p]),
        "link_tap": (u64, [ring, u32, u32, ctypes.c_void_p, u64]),
        "save": (i64, [ring]),
        "saved": (None, [ring, words]),
        "restore": (i64, [ring, words, u64]),
        "wave_open": (i64, [ring, ctypes.c_char_p]),
        "wave_close": (i64, [ring]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, f"ring_{name}")
        function.restype = result
        function.argtypes = arguments
    return library
