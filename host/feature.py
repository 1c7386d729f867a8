"""Descriptions of features' additions to the host software; the core calls each addition where needed.

A feature is named like its gateware in :data:`hdl.registry.FEATURES`. Its files are in ``host/features/<name>``, and
its description is in ``feature.py`` there. No part of a feature is imported before its name is used.
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
    """Base class of feature descriptions; by default a feature adds nothing."""

    #: The part of the feature that golden nodes do not support, and the reason; None if they support all of it.
    not_golden: tuple[str, str] | None = None

    # Additions to the driver.

    def elements(self) -> "ElementFormat | None":
        """Format of the elements in memories; None for the default format."""
        return None

    def part(self, ring: "Ring") -> Any:
        """Driver for the feature's commands on the nodes of a ring."""
        raise NotImplementedError

    def in_reset(self, devices: "Devices") -> None:
        """Prepare nodes while their links are held in reset."""

    def after_reset(self, devices: "Devices") -> None:
        """Prepare nodes after their links have been restarted."""

    def codebook_words(self, codec: str, centroids: Bits) -> Bits:
        """Contents of a node's codebook memory, given a codec and its centroids."""
        raise NotImplementedError

    # Additions to transports.

    def golden(self, nodes: "GoldenNodes") -> "GoldenPart | None":
        """Golden model of the feature, as a component of golden nodes."""
        return None

    def golden_devices(self, nodes: "GoldenNodes", latency: int) -> "list[Device] | None":
        """Drivers for golden nodes, if the feature provides its own."""
        return None

    def reach(self, transport: "Transport", nodes: int) -> "Sequence[Transport]":
        """Transports to all nodes through the first node's host port."""
        raise NotImplementedError

    def grid_nodes(self, devices: "Sequence[Device]", *, golden: "GoldenNodes | None", rows: int, columns: int,
                   timeout: int) -> Any:
        """Nodes of a grid, either Verilated or golden."""
        raise NotImplementedError

    # Additions to training.

    def number_format(self, optimizer: "Optimizer", count: int) -> "Elements | None":
        """Conversion between the numbers of a model and the elements of nodes with a different number format, for
        batches of at most ``count`` examples."""
        return None

    def reference(self, ring: "VectorRing", plan: Any, weights: "Vector", planes: int,
                  centroids: Bits | None) -> "Reference | None":
        """Golden model of a ring's nodes, or of the rings in a plan; None for the default model."""
        return None

    def centroids(self, codec: str, weights: npt.ArrayLike) -> Bits:
        """Compute the centroids of a weight codec from weights."""
        raise NotImplementedError

    def check_numbers(self, workload: "Workload", config: "TrainingConfig") -> None:
        """Raise ``ValueError`` if the element format of the nodes is unsuitable for a run."""

    def check_run(self, node: "Configuration", workload: "Workload", config: "TrainingConfig", *, nodes: int) -> None:
        """Raise ``ValueError`` if a run requests the feature but a ring of these nodes does not support it."""

    def training_node(self, node: "Configuration", workload: "Workload", config: "TrainingConfig", *,
                      nodes: int) -> Any:
        """Copy of the node configuration with the feature's settings for a run."""
        return node

    def differentiator(self, ring: "TrainingRing", workload: "Workload", config: "TrainingConfig") -> Any:
        """Object that computes gradients on the nodes of a ring."""
        raise NotImplementedError

    def execution(self, ring: "TrainingRing", workload: "Workload", config: "TrainingConfig") -> "Execution":
        """Executor that performs the steps of a run on the nodes."""
        raise NotImplementedError

    def overlaps(self, schedule: str) -> bool:
        """Whether passes of a schedule overlap; raises ``ValueError`` if there is no such schedule."""
        raise NotImplementedError

    def overlapping(self) -> "type[UpdateExecutor]":
        """Executor class for runs with overlapping passes."""
        raise NotImplementedError

    def patience(self, workload: "Workload", config: "TrainingConfig", nodes: int) -> int:
        """Maximum number of cycles that a command of a run may wait for another command."""
        raise NotImplementedError

    def stages(self, grid: Any, reconfiguration: Any, clock: "Callable[[], Cycles]") -> "RingStages":
        """Rings of a grid's nodes at each stage of a reconfiguration."""
        raise NotImplementedError

    # Additions to runs.

    def schedules(self) -> "Iterable[type[Schedule]]":
        """Schedules of runs that the feature adds."""
        return ()

    def size(self, topology: str) -> tuple[int, int]:
        """Parse a topology into rows and columns."""
        raise NotImplementedError

    def reconfiguration(self, ring: "RingSection", gradients: str) -> Any:
        """Reconfiguration plan for a run's rings, whose gradients have the given format."""
        raise NotImplementedError


@functools.cache
def feature(name: str) -> Feature:
    """Return the description of a feature; raises ``ValueError`` if the feature is not in this copy."""
    if name not in FEATURES:
        raise ValueError(f"Feature {name} must be in this copy of gradring, which has been made without it")
    if not any((Path(folder) / name / "feature.py").is_file() for folder in features.__path__):
        return Feature()
    description: Feature = importlib.import_module(f"{features.__name__}.{name}.feature").FEATURE
    return description


def features_of(config: "Configuration") -> list[Feature]:
    """Return the descriptions of a configuration's features, in registry order."""
    return [feature(name) for name in config.feature_names]
