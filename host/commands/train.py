"""The command `gradring train`."""

from pathlib import Path

from host.console import make_console
from host.run.command_line import command
from host.run.execution import train
from host.run.processes import serves
from host.run.repeat import check_report, comparison
from host.run.spec import RunSpec

__all__ = ["train_command"]


@command
def train_command(spec: RunSpec, report: Path | None) -> None:
    """Train on a ring, and compare every node with the golden model after every step."""
    if serves():
        return
    earlier = None if report is None else check_report(report)
    result = train(spec)
    if earlier is not None:
        for line in comparison(earlier, result):
            make_console().print(line, soft_wrap=True)
