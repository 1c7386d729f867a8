"""Description of a feature's additions to the host; the core requests each where it uses it.

A feature has the name of its gateware, one of :data:`hdl.registry.FEATURES`, and its files in
``host/features/<name>``, with the description in ``feature.py``. Nothing of a feature is imported before it is
named.
"""

import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hdl.registry import FEATURES
from host import features

if TYPE_CHECKING:
    from hdl.config import Configuration
    from host.driver.device import Device
    from host.driver.devices import Devices
    from host.driver.elements import ElementFormat
    from host.driver.protocols import TrainingRing, VectorRing
    from host.driver.results import Cycles
    from host.driver.ring import Ring
    from host.driver.transport import Transport
    from host.driver.words import Vector
    from host.run.schedule import Schedule
    from host.run.sections import Ring as RingSection
    from host.training.executions import Execution
    from host.training.number_format import Elements
    from host.training.optimizers import Optimizer
    from host.training.record import TrainingConfig
    from host.training.reference import Reference
    from host.training.stages import RingStages
    from host.training.updates import UpdateExecutor
    from host.training.workloads import Workload
    from host.transports.golden.nodes import GoldenNodes, GoldenPart

__all__ = ["Feature", "feature", "features_of"]

Bits: TypeAlias = npt.NDArray[np.uint32]


class Feature:
    """Base of the descriptions of features; by default a feature adds nothing."""

    #: Its part that golden nodes lack, in words, and the reason; None if they have the whole feature.
    not_golden: tuple[str, str] | None = None

    # Driver.

    def elements(self) -> "ElementFormat | None":
        """Format of elements in memories, if it is another one."""
        return None

    def part(self, ring: "Ring") -> Any:
        """Driver of its commands on the nodes of a ring."""
        raise NotImplementedError

    def in_reset(self, devices: "Devices") -> None:
        """Put nodes in order while their links are held in reset."""

    def after_reset(self, devices: "Devices") -> None:
        """Put nodes in order after their links have restarted."""

    def codebook_words(self, codec: str, centroids: Bits) -> Bits:
        """Contents of a node's codebook memory."""
        raise NotImplementedError

    # Transports.

    def golden(self, nodes: "GoldenNodes") -> "GoldenPart | None":
        """Part of golden nodes."""
        return None

    def golden_devices(self, nodes: "GoldenNodes", latency: int) -> "list[Device] | None":
        """Drivers of golden nodes, if it has its own drivers."""
        return None

    def reach(self, transport: "Transport", nodes: int) -> "Sequence[Transport]":
        """Transports to all nodes through the host port of the first one."""
        raise NotImplementedError

    def grid_nodes(self, devices: "Sequence[Device]", *, golden: "GoldenNodes | None", rows: int, columns: int,
                   timeout: int) -> Any:
        """Nodes of a grid, Verilated or golden ones."""
        raise NotImplementedError

    # Training.

    def number_format(self, optimizer: "Optimizer", count: int) -> "Elements | None":
        """Conversion between numbers of a model and elements of nodes of another format, with at most ``count``
        examples in a batch."""
        return None

    def reference(self, ring: "VectorRing", plan: Any, weights: "Vector", planes: int,
                  centroids: Bits | None) -> "Reference | None":
        """Golden model of the nodes of a ring, or of the rings of a plan, if it is another one."""
        return None

    def centroids(self, codec: str, weights: npt.ArrayLike) -> Bits:
        """Centroids of weights for a weight codec."""
        raise NotImplementedError

    def check_numbers(self, workload: "Workload", config: "TrainingConfig") -> None:
        """Raise ``ValueError`` if the elements of nodes do not suit a run."""

    def check_run(self, node: "Configuration", workload: "Workload", config: "TrainingConfig", *, nodes: int) -> None:
        """Raise ``ValueError`` if a ring of such nodes cannot do a run that asks for the feature."""

    def training_node(self, node: "Configuration", workload: "Workload", config: "TrainingConfig", *,
                      nodes: int) -> Any:
        """The same node with the feature's settings for a run."""
        return node

    def differentiator(self, ring: "TrainingRing", workload: "Workload", config: "TrainingConfig") -> Any:
        """Computation of gradients on the nodes of a ring."""
        raise NotImplementedError

    def execution(self, ring: "TrainingRing", workload: "Workload", config: "TrainingConfig") -> "Execution":
        """Execution of the steps of a run on nodes."""
        raise NotImplementedError

    def overlaps(self, schedule: str) -> bool:
        """Whether passes of a schedule overlap; ``ValueError`` if there is no such schedule."""
        raise NotImplementedError

    def overlapping(self) -> "type[UpdateExecutor]":
        """Executor of runs with overlapping passes."""
        raise NotImplementedError

    def patience(self, workload: "Workload", config: "TrainingConfig", nodes: int) -> int:
        """Cycles that a command of a run may wait for another one."""
        raise NotImplementedError

    def stages(self, grid: Any, reconfiguration: Any, clock: "Callable[[], Cycles]") -> "RingStages":
        """Rings of the nodes of a grid, in the stages of a reconfiguration."""
        raise NotImplementedError

    # Runs.

    def schedules(self) -> "Iterable[type[Schedule]]":
        """Schedules of runs."""
        return ()

    def size(self, topology: str) -> tuple[int, int]:
        """Rows and columns of a text."""
        raise NotImplementedError

    def reconfiguration(self, ring: "RingSection") -> Any:
        """Reconfiguration plan of a run's rings."""
        raise NotImplementedError


@functools.cache
def feature(name: str) -> Feature:
    """Description of a feature by its name; ``ValueError`` if it is not in this copy."""
    if name not in FEATURES:
        raise ValueError(f"Feature {name} must be in this copy of gradring, which has been made without it")
    if not any((Path(folder) / name / "feature.py").is_file() for folder in features.__path__):
        return Feature()
    description: Feature = importlib.import_module(f"{features.__name__}.{name}.feature").FEATURE
    return description


def features_of(config: "Configuration") -> list[Feature]:
    """Descriptions of the features of a configuration, in the order of the registry."""
    return [feature(name) for name in config.feature_names]
