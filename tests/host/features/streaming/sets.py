"""Sets of relays, as the trainer does them."""

from host.training.trainer import Trainer

__all__ = ["do", "resume", "state_of"]


def do(run, sets=1):
    """Do some sets; the report of the last one."""
    Trainer(run, run.batches, total=run.batches.number + sets).train()
    return run.reports[-1]


def state_of(run):
    """State of a run and of its trainer."""
    return Trainer(run, run.batches).state()


def resume(run, state):
    """Continue from a state of another run and its trainer."""
    Trainer(run, run.batches).resume(state)
