"""Options of a training run on nodes with far memories, which hold the saved maps that have no room near."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Annotated, Any

import typer

from host.memory.policy_search import KINDS
from host.training.record import NODE, FarMemory
from host.training.workloads import WorkloadName
from host.transports.session import TransportName

__all__ = ["Activations", "Far", "Memory", "far_memory"]

Activations = Annotated[int | None, typer.Option(
    help="Words of each node's activation memory that a sequence of text may take, without lists; saved maps that do "
         "not fit are swapped or made again, by a plan. [default: as many as all maps need]", show_default=False)]
Far = Annotated[str | None, typer.Option(
    help=f"Words per cycle of each node's far memory, as 1/4. [default: 1/{1 / FarMemory.rate:.0f}]",
    metavar="RATE", show_default=False)]
Memory = Annotated[str | None, typer.Option(
    help=f"What may be done with saved maps: {', '.join(KINDS)}. [default: {FarMemory.kind}]", show_default=False)]

_OWN = ("activations", "far", "memory")


def far_memory(options: Mapping[str, Any], given: Callable[[str], bool]) -> FarMemory | None:
    """Far memory of a run by its options; None if there is none.

    Raises
    ------
    ValueError
        An option was given that has no effect on the run, or is none.
    """
    wrong = None
    if options["activations"] is None:
        wrong = "is for a run with --activations"
    elif options["workload"] is not WorkloadName.TEXT or options["compute"] != NODE:
        wrong = "is for text on nodes that compute, which --workload text --compute node ask for"
    elif options["board"] is not None or options["transport"] is not TransportName.VERILATED or options["device"]:
        wrong = "is for transport verilated, and nodes that no board stands for"
    for name in filter(given, _OWN if wrong else ()):
        raise ValueError(f"Option --{name} {wrong}: leave it out")
    if options["activations"] is None:
        return None
    rate, kind = options["far"], options["memory"]
    return FarMemory(activations=options["activations"], rate=FarMemory.rate if rate is None else _rate(rate),
                     kind=FarMemory.kind if kind is None else kind)


def _rate(text: str) -> float:
    """Words per cycle."""
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"Rate of far memory must be a number or a fraction, as 1/4, not {text!r}") from None
