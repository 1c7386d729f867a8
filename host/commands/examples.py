"""The command `gradring examples`."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from host.console import make_console, shown
from host.output import prepare
from sim.verilated import toolchain

__all__ = ["examples_command"]


def examples_command(
    folder: Annotated[Path, typer.Argument(help="Folder for the examples.")] = Path("examples"),
) -> None:
    """Copy the examples to a folder, to run and change them."""
    source = toolchain.ROOT / "examples"
    if folder.resolve() == source.resolve():
        raise ValueError(f"Folder must be another one than {shown(source)}, where the examples are")
    paths = sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    changed = [target for path in paths if (target := folder / path.relative_to(source)).is_file()
               and target.read_bytes() != path.read_bytes()]
    if changed:
        raise ValueError(f"Folder must have no changed example, not {', '.join(map(shown, changed))}: name another")
    prepare(folder)
    console = make_console()
    for path in paths:
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        console.print(shown(target), soft_wrap=True)
