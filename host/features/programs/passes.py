"""Result of a run of programs."""

import dataclasses

from host.driver.command import Event
from host.driver.results import Outcome
from host.driver.trace import TraceRecord

__all__ = ["Passes"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes:
    """Result of a run."""

    events: list[list[Event]]  # events of each node, those of its first queue before those of the next
    # starts and ends of its commands; empty where they were not asked for, and on nodes with one queue
    traces: list[list[TraceRecord]]
    # cycles from the first start to the last end, of the node on which they were most. Without traces, the sum of the
    # cycles that its commands took.
    outcome: Outcome
