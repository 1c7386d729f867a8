"""Repeats after a failure of the ring, and the restoring of nodes before them."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from host.driver.diagnosis import RingError
from host.driver.ring_memory import RingMemory
from host.training.golden_run import Reference
from host.training.record import TrainingConfig

__all__ = ["REPEATS", "repeat", "write_nodes"]

#: Times that the same thing is done again, one after the other.
REPEATS = 3

T = TypeVar("T")


def repeat(what: str, action: Callable[[], T], again: Callable[[str], None]) -> T:
    """Do an action until it succeeds, at most ``1 + REPEATS`` times.

    Parameters
    ----------
    what : str
        Name of the action, for messages.
    action : callable
    again : callable
        Called with a line for the user before each repeat; restores the state from before the action.

    Raises
    ------
    RingError
        The action failed every time, or in a way that another try does not mend.
    """
    for failures in range(1, REPEATS + 2):
        try:
            return action()
        except RingError as error:
            if not error.transient:
                raise
            if failures > REPEATS:
                raise RingError(f"{what} failed {failures} times in a row, which is no passing disturbance: check "
                                f"the links of the ring; the last time {error}", cause=error.cause,
                                events=error.events) from error
            reason = str(error).partition("\n")[0]
        again(f"{what} is repeated: {reason}")
    raise AssertionError("the loop returns or raises")


def write_nodes(memory: RingMemory, reference: Reference, centroids: npt.NDArray[np.uint32] | None,
                config: TrainingConfig) -> None:
    """Give the nodes everything that the golden model has: weights, masters, state, errors, residuals, codebook.

    Parameters
    ----------
    centroids : array of uint32, optional
        Codebook of a weight codec that has one.
    config : TrainingConfig
        Whether state is stored as bfloat16, and whether nodes keep the elements that they do not send.
    """
    if centroids is not None:
        memory.write_codebook(centroids)
    memory.write_weights(reference.weights)
    if reference.has_master:
        memory.write_master(reference.master)
    for plane, state in enumerate(reference.state):
        memory.write_state(state.view(np.float32), plane, packed_state=config.packed_state)
    if config.density is not None:
        memory.write_errors(list(reference.errors))
    if reference.residuals is not None:
        memory.write_residual(list(reference.residuals))
