"""State of a process as regions of a checkpoint: a text of canonical JSON, and arrays as npy files beside it."""

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from host.archives import read_header
from host.checkpoints.manifest import LARGEST_REGION, canonical
from host.checkpoints.rejections import MalformedError
from sim import json_files

__all__ = ["STATE", "array_region", "pack_state", "unpack_state"]

STATE = "process/state.json"

#: Types of arrays, by the text that an npy file has for them.
_TYPES = {np.dtype(name) for name in ("u1", "i1", "b1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8")}
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def array_region(number: int) -> str:
    """Name of the region of an array."""
    return f"process/array/{number:04d}"


def pack_state(value: Any) -> dict[str, bytes]:
    """Regions of a state.

    Parameters
    ----------
    value : object
        None, numbers, texts and arrays, in lists and in dictionaries whose keys are texts.
    """
    arrays: list[npt.NDArray[Any]] = []
    text = canonical(_pack(value, arrays))
    return {STATE: text, **{array_region(number): _npy(array) for number, array in enumerate(arrays)}}


def unpack_state(regions: dict[str, bytes]) -> Any:
    """The state of its regions, whose digests have been checked.

    Raises
    ------
    MalformedError
        A region is not in the form that :func:`pack_state` gives it.
    """
    try:
        found = _unpack(json_files.parse(regions[STATE], largest=LARGEST_REGION), regions)
        same = canonical(_pack(found, [])) == regions[STATE]
    except (ValueError, TypeError, KeyError, IndexError):
        raise MalformedError("state of the process must be canonical JSON that names its arrays") from None
    if not same:
        raise MalformedError("state of the process must be canonical JSON that names its arrays in order")
    return found


def _pack(value: Any, arrays: list[npt.NDArray[Any]]) -> Any:
    """A value without its arrays, which are added to ``arrays``."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"$array": len(arrays) - 1}
    if isinstance(value, dict):
        if any(not isinstance(key, str) or key.startswith("$") for key in value):
            raise ValueError(f"Keys of a state must be texts that do not begin with $, not {list(value)}")
        return {key: _pack(value[key], arrays) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_pack(one, arrays) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$number": str(float(value))}
    return value


def _unpack(value: Any, regions: dict[str, bytes]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$array"}:
            return _array(regions[array_region(value["$array"])])
        if value.keys() == {"$number"}:
            return _NUMBERS[value["$number"]]
        return {key: _unpack(one, regions) for key, one in value.items()}
    if isinstance(value, list):
        return [_unpack(one, regions) for one in value]
    return value


def _npy(array: npt.NDArray[Any]) -> bytes:
    """An array as a npy file, in little-endian order and rows."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<")) if array.ndim else array
    if array.dtype not in _TYPES:
        raise ValueError(f"Arrays of a state must be of integers or floats, not {array.dtype}")
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _array(data: bytes) -> npt.NDArray[Any]:
    """The array of a npy file; no memory is taken before its size is known to be that of the data."""
    file = io.BytesIO(data)
    dtype, shape, fortran, length = read_header(file, "of a state")
    rest = data[length:]
    if fortran or dtype not in _TYPES or math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError("npy file must be one of numbers in rows, and of the size of its shape")
    array = np.frombuffer(rest, dtype).reshape(shape).copy()
    if _npy(array) != data:
        raise ValueError("npy file must be as it is written here")
    return array
