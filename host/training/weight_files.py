"""Trained weights as npz files, which `gradring train` writes for later commands."""

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt

from host.archives import read_arrays
from host.output import replacing
from host.training.workloads import WorkloadName

__all__ = ["SCHEMA", "VERSION", "TrainedWeights", "load", "save"]

SCHEMA = "gradring.weights"
VERSION = 2


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainedWeights:
    """Parameters of a model, with the options that make the model again.

    Members
    -------
    workload : WorkloadName
    hidden : tuple of int
        Width of each hidden layer of a perceptron.
    seed : int
    parameters : array of float32
        Parameters, flat, as the model has them.
    """

    workload: WorkloadName
    hidden: tuple[int, ...]
    seed: int
    parameters: npt.NDArray[np.float32]


def save(weights: TrainedWeights, path: Path) -> None:
    """Write a file, and make the folder it is in."""
    with replacing(path) as file:
        np.savez_compressed(
            file, schema=np.array(SCHEMA), version=np.int64(VERSION), workload=np.array(weights.workload.value),
            hidden=np.array(weights.hidden, np.int64), seed=np.int64(weights.seed),
            parameters=np.asarray(weights.parameters, np.float32))


def load(path: Path) -> TrainedWeights:
    """Read a file.

    Raises
    ------
    ValueError
        The file is not one of those that :func:`save` writes.
    OSError
        The file cannot be read.
    """
    arrays = read_arrays(path)
    names = {"schema", "version", "workload", "hidden", "seed", "parameters"}
    if arrays.keys() != names or str(arrays["schema"]) != SCHEMA:
        raise ValueError(f"{path} must hold trained weights, that is {', '.join(sorted(names))}, not "
                         f"{', '.join(sorted(arrays)) or 'nothing'}")
    if arrays["version"] != VERSION:
        raise ValueError(f"{path} must be of version {VERSION}, not {arrays['version']}")
    workload, names = str(arrays["workload"]), {choice.value for choice in WorkloadName}
    if workload not in names:
        raise ValueError(f"{path} must be of workload {' or '.join(sorted(names))}, not {workload!r}")
    parameters = arrays["parameters"]
    if parameters.dtype != np.float32 or parameters.ndim != 1 or not np.isfinite(parameters).all():
        raise ValueError(f"{path} must have finite parameters of float32 in one vector, not {parameters.dtype} of "
                         f"shape {parameters.shape!r}")
    return TrainedWeights(workload=WorkloadName(workload), seed=int(arrays["seed"]),
                          hidden=tuple(int(width) for width in arrays["hidden"]), parameters=parameters)
