"""The command `gradring lab`."""

import typer

from host.command_group import CommandGroup
from host.labs.registry import LABS

__all__ = ["lab_app"]


class _Labs(CommandGroup):
    """Group of :data:`~host.labs.registry.LABS`."""

    entries = LABS
    heading = "Labs"


lab_app = typer.Typer(cls=_Labs, add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@lab_app.callback()
def lab_command() -> None:
    """Run an experiment; without its name, list all experiments."""
