"""Options before work begins: which apply to a run, which are in range, and what a run is compared with."""

import dataclasses
from collections.abc import Callable
from typing import Annotated

import typer

from hdl.board import BOARDS
from hdl.compute.operands import OPERANDS
from host.training.optimizers import LEARNING_RATES, SGD, OptimizerName, moments_note
from host.training.record import HOST, NODE, TrainingConfig
from host.training.workloads import WorkloadName
from host.transports.session import TransportName

__all__ = ["ComputeFormat", "compared", "refuse_unused", "show_moments_note"]

ComputeFormat = Annotated[str, typer.Option(
    help=f"Format that factors of matrix products are rounded to, on the host or on nodes: {', '.join(OPERANDS)}.")]

_SERIAL, _BOARD = TransportName.SERIAL, TransportName.BOARD
_STATELESS = (OptimizerName.SGD,)


def refuse_unused(given: Callable[[str], bool], *, workload: WorkloadName, optimizer: OptimizerName,
                  transport: TransportName, device: str | None, board: str | None = None,
                  overlap: str | None = None, compute: str = HOST, faults: float | None = None,
                  topology: str | None = None) -> None:
    """Raise ``ValueError`` if an option was given that has no effect on a training run.

    Parameters
    ----------
    given : callable
        Whether an option was given, by its name in the code.
    workload, optimizer, transport, device, board, overlap, compute, faults, topology
        Those of the run.
    """
    simulated = transport in (TransportName.VERILATED, TransportName.MESSAGES, TransportName.PYSIM)
    integers = board is not None and BOARDS[board].node.is_int16
    momentum = optimizer in (OptimizerName.MOMENTUM, OptimizerName.NESTEROV)
    refused = {
        "hidden": (workload is not WorkloadName.DIGITS, f"is for workload digits, not {workload.value}"),
        "momentum": (not momentum, f"is for optimizers momentum and nesterov, not {optimizer.value}"),
        "dampening": (optimizer is not OptimizerName.MOMENTUM, f"is for optimizer momentum, not {optimizer.value}"),
        "moments": (optimizer in _STATELESS, f"is for optimizers with state, not {optimizer.value}"),
        "threads": (transport not in (TransportName.VERILATED, TransportName.MESSAGES),
                    f"is for transport verilated, not {transport.value}"),
        "processes": (transport is not TransportName.VERILATED,
                      f"is for transport verilated, not {transport.value}"),
        "arithmetic": (transport is not TransportName.VERILATED or integers,
                       "is for nodes with floating-point units" if integers
                       else f"is for transport verilated, not {transport.value}"),
        "host_port": (transport is not TransportName.VERILATED,
                      f"is for transport verilated, not {transport.value}"),
        "state_planes": (board is not None, "is for nodes that no board stands for"),
        "link_latency": (not simulated, f"is for transports verilated and pysim, not {transport.value}"),
        "faults": (board is not None, "is for simulated nodes that no board stands for"),
        "fault_seed": (faults is None, "is for a run with --faults"),
        "baud": (transport is not _SERIAL, "is for a board's serial port, which --device names"),
        "reconnect": (transport not in (_SERIAL, _BOARD),
                      f"is for transports board and serial, not {transport.value}"),
        "topology": (transport is _SERIAL or board not in (None, "simulated"),
                     "is for simulated nodes of no board that there is"),
        "overlap": (board is not None or topology is not None,
                    "is for simulated nodes, which have room to stage gradients" if topology is None else
                    "is for a ring that stays as it is, not for --topology"),
        "compute": (compute == NODE and topology is not None,
                    "node is for a ring that stays as it is, not for --topology"),
        "compute_format": (workload is not WorkloadName.DIGITS, f"is for workload digits, not {workload.value}"),
        "disable": (topology is None, "is for a run with --topology"),
        "enable": (topology is None, "is for a run with --topology"),
        "shape": (topology is None, "is for a run with --topology"),
        "tiling": (compute != NODE or workload is not WorkloadName.DIGITS,
                   "is for nodes that compute, which --compute node asks for" if compute != NODE
                   else f"is for workload digits, not {workload.value}"),
        "chakra": (overlap is None or workload is not WorkloadName.DIGITS,
                   "is for a run by a program on digits, which --overlap asks for"),
        "macs": (overlap is None and compute != NODE, "is for nodes that compute, or a run by a program, which "
                                                      "--compute node and --overlap ask for"),
        "compare": (overlap is not None, "is for a run without a program, whose bits are the same" if compute == NODE
                    else "is for a run without --overlap, whose bits are the same"),
        "transport": (device is not None and transport is not _SERIAL,
                      f"must be serial for --device, not {transport.value}"),
    }
    for name, (wrong, reason) in refused.items():
        if wrong and given(name):
            raise ValueError(f"Option --{name.replace('_', '-')} {reason}: leave it out")


def compared(config: TrainingConfig, name: OptimizerName, *, text: bool,
             asked: bool | None) -> TrainingConfig | None:
    """The configuration of the run that it is compared with, if there is one."""
    if config.density is not None:
        return None if asked is False else dataclasses.replace(config, density=None)
    if text and asked:
        raise ValueError("Workload to be compared with sgd must be digits, not text")
    if asked is None:
        asked = not text and name in (OptimizerName.ADAM, OptimizerName.ADAMW)
    if not asked:
        return None
    if name is OptimizerName.SGD:
        raise ValueError("Optimizer to be compared with sgd must be another one, not sgd")
    return dataclasses.replace(
        config, optimizer=SGD(learning_rate=LEARNING_RATES[OptimizerName.SGD]), packed_state=False)


def show_moments_note(config: TrainingConfig, say: Callable[[str], None]) -> None:
    """Say it if the nodes' format of the optimizer's state keeps it from decaying."""
    if (note := moments_note([config.optimizer], packed_state=config.packed_state)) is not None:
        say(note)
