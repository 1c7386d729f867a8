"""Files of trained weights (npz) that `gradring train` writes for later commands."""

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt

from host.archives import Kind, read_arrays
from host.output import replacing
from host.training.workloads import WorkloadName

__all__ = ["SCHEMA", "VERSION", "TrainedWeights", "load", "save"]

SCHEMA = "gradring.weights"
VERSION = 2

#: Maximum size in bytes of a file and of its arrays, maximum number of hidden layers, and maximum layer width.
LARGEST, MAX_LAYERS, MAX_WIDTH = 1 << 28, 1024, 1 << 20

_ARRAYS = {"schema": Kind(np.str_), "version": Kind(np.int64), "workload": Kind(np.str_), "hidden": Kind(np.int64, 1),
           "seed": Kind(np.int64), "parameters": Kind(np.float32, 1)}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainedWeights:
    """Parameters of a model, with the options needed to recreate the model."""

    workload: WorkloadName
    #: Width of each hidden layer of a perceptron.
    hidden: tuple[int, ...]
    seed: int
    #: Parameters as a flat vector, in model order.
    parameters: npt.NDArray[np.float32]


def save(weights: TrainedWeights, path: Path) -> None:
    """Write a file, creating its folder if necessary."""
    with replacing(path) as file:
        np.savez_compressed(
            file, schema=np.array(SCHEMA), version=np.int64(VERSION), workload=np.array(weights.workload.value),
            hidden=np.array(weights.hidden, np.int64), seed=np.int64(weights.seed),
            parameters=np.asarray(weights.parameters, np.float32))


def load(path: Path) -> TrainedWeights:
    """Read a file written by :func:`save`; raise ``ValueError`` if it is invalid, ``OSError`` if it is unreadable."""
    arrays = read_arrays(path, _ARRAYS, largest=LARGEST)
    if arrays.keys() != _ARRAYS.keys() or arrays["schema"].item() != SCHEMA:
        raise ValueError(f"{path} must hold trained weights, that is {', '.join(sorted(_ARRAYS))}, not "
                         f"{', '.join(sorted(arrays)) or 'nothing'}")
    if arrays["version"].item() != VERSION:
        raise ValueError(f"{path} must be of version {VERSION}, not {arrays['version'].item()}")
    workload, names = arrays["workload"].item(), sorted(choice.value for choice in WorkloadName)
    if workload not in names:
        raise ValueError(f"{path} must be of workload {' or '.join(names)}, not {workload!r}")
    hidden = tuple(arrays["hidden"].tolist())
    if len(hidden) > MAX_LAYERS or not all(1 <= width <= MAX_WIDTH for width in hidden):
        raise ValueError(f"{path} must have at most {MAX_LAYERS} hidden layers of 1 to {MAX_WIDTH:,}, not "
                         f"{len(hidden)} of {min(hidden):,} to {max(hidden):,}")
    if not np.isfinite(arrays["parameters"]).all():
        raise ValueError(f"{path} must have finite parameters")
    return TrainedWeights(workload=WorkloadName(workload), seed=arrays["seed"].item(), hidden=hidden,
                          parameters=arrays["parameters"])
