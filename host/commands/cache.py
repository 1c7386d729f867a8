"""The command `gradring cache`."""

import re
import time
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.table import Table

from host.console import make_console
from sim.verilated import cache_content, cache_folder

__all__ = ["cache_app"]

cache_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

#: Length in seconds and name of each time unit, largest unit first.
_UNITS = {"w": (7 * 86400, "weeks"), "d": (86400, "days"), "h": (3600, "hours"), "m": (60, "minutes")}


def _seconds(text: str) -> float:
    """Convert a text such as ``30d`` or ``12h`` to seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([mhdw])\s*", text)
    if match is None:
        raise ValueError(f"Age must be a number with m, h, d or w for minutes, hours, days or weeks, as in 30d, not "
                         f"{text!r}")
    return float(match[1]) * _UNITS[match[2]][0]


def _age(seconds: float) -> str:
    """Format an age in the largest time unit that is at most half of the age."""
    return next((f"{seconds / unit:.0f} {name} ago" for unit, name in _UNITS.values() if seconds >= 2 * unit), "now")


@cache_app.callback(invoke_without_command=True)
def cache_command(context: typer.Context) -> None:
    """Show the build products that are kept: kinds, entries, size and last use."""
    if context.invoked_subcommand is not None:
        return
    console, entries, now = make_console(), cache_content.entries(), time.time()
    table = Table("kind", "what", title="cache", title_justify="left", border_style="dim")
    for heading in ("entries", "size", "last use"):
        table.add_column(heading, justify="right")
    for kind, what in cache_folder.KINDS.items():
        selected = [entry for entry in entries if entry.kind == kind]
        if selected:
            table.add_row(kind, what, f"{len(selected):,}", decimal(sum(entry.size for entry in selected)),
                          _age(now - max(entry.used for entry in selected)))
    table.add_section()
    table.add_row("all", "", f"{len(entries):,}", decimal(sum(entry.size for entry in entries)), "")
    console.print(table)
    console.print(f"folder: {cache_folder.root()} (environment variable {cache_folder.VARIABLE})", soft_wrap=True)
    console.print(f"limit: {decimal(cache_folder.limit())} ({cache_folder.LIMIT}); beyond it the oldest go",
                  soft_wrap=True)


def _report(removed: cache_content.Removed) -> None:
    console = make_console()
    console.print(f"entries removed: {len(removed.gone):,}, {decimal(removed.size)}", soft_wrap=True)
    if removed.kept:
        console.print(f"entries in use, and kept: {len(removed.kept):,}, "
                      f"{decimal(sum(entry.size for entry in removed.kept))}", soft_wrap=True)


@cache_app.command("prune")
def prune_command(
    limit: Annotated[str | None, typer.Option(
        help="Maximum size that remains, such as 5GB. [default: the cache's own limit, or none with --older-than]",
        show_default=False)] = None,
    older_than: Annotated[str | None, typer.Option(
        help="Also remove entries not used for this time, such as 30d or 12h.", show_default=False)] = None,
) -> None:
    """Remove the least recently used entries, and the remains of killed builds."""
    before = None if older_than is None else time.time() - _seconds(older_than)
    default = cache_folder.limit() if before is None else 1 << 62
    most = default if limit is None else cache_folder.size(limit)
    _report(cache_content.prune(most=most, before=before))


@cache_app.command("clear")
def clear_command() -> None:
    """Remove everything that no running process uses."""
    _report(cache_content.prune(most=-1))
