"""Programs on the nodes: docs/program.md."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from host.feature import Feature

if TYPE_CHECKING:
    from hdl.config import Configuration, NodeConfig
    from host.driver.device import Device
    from host.driver.protocols import TrainingRing
    from host.driver.ring import Ring
    from host.features.programs.delayed import DelayedExecutor
    from host.features.programs.execution import ProgramExecution
    from host.features.programs.ring_programs import RingPrograms
    from host.run.schedule import Schedule
    from host.training.record import TrainingConfig
    from host.training.workloads import Workload
    from host.transports.golden.nodes import GoldenNodes

__all__ = ["FEATURE", "ProgramsFeature"]


class ProgramsFeature(Feature):
    """Programs, and training with schedules that run as programs."""

    def part(self, ring: "Ring") -> "RingPrograms":
        from host.features.programs.ring_programs import RingPrograms

        return RingPrograms(ring.devices, ring.commands, ring.planned)

    def golden_devices(self, nodes: "GoldenNodes", latency: int) -> "list[Device]":
        from host.features.programs.golden import GoldenPrograms, ProgramDevice

        programs = GoldenPrograms(nodes, latency=latency)
        return [ProgramDevice(nodes, programs, rank) for rank in range(nodes.nodes)]

    def check_run(self, node: "Configuration", workload: "Workload", config: "TrainingConfig", *, nodes: int) -> None:
        from host.features.programs.execution import check_schedule

        check_schedule(node, workload, config, nodes=nodes)

    def training_node(self, node: "Configuration", workload: "Workload", config: "TrainingConfig", *,
                      nodes: int) -> "NodeConfig":
        from host.features.programs.execution import programmed

        return programmed(node, workload.parameters.size, len(config.hidden) + 1, stale=config.overlaps, nodes=nodes)

    def execution(self, ring: "TrainingRing", workload: "Workload", config: "TrainingConfig") -> "ProgramExecution":
        from host.features.programs.execution import execution_of

        return execution_of(ring, workload, config)

    def overlaps(self, schedule: str) -> bool:
        from host.features.programs.schedules import Kind, Schedule

        return Schedule.parse(schedule).kind is Kind.DELAYED

    def overlapping(self) -> "type[DelayedExecutor]":
        from host.features.programs.delayed import DelayedExecutor

        return DelayedExecutor

    def patience(self, workload: "Workload", config: "TrainingConfig", nodes: int) -> int:
        from host.features.programs.execution import patience_of

        return patience_of(workload, config, nodes)

    def schedules(self) -> "Iterable[type[Schedule]]":
        from host.features.programs.schedule_section import Program

        return (Program,)


FEATURE = ProgramsFeature()
