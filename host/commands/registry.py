"""The commands, each loaded when it is run or its help is asked for: a new command is entered here."""

import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import typer
from typer import core, main

from host.signals import ended_at_once

__all__ = ["COMMANDS", "CommandGroup"]


class _Entry(NamedTuple):
    """A command."""

    #: Module and name of its function, or of the :class:`typer.Typer` of a command with commands of its own.
    module: str
    name: str
    #: First sentence of its docstring.
    help: str
    #: Settings of its context.
    settings: dict[str, Any] | None = None


#: Commands by name, in the order in which the help lists them.
COMMANDS = {
    "train": _Entry("host.commands.train", "train_command",
                    "Train on a ring, and compare every node with the golden model after every step."),
    "bench": _Entry("host.commands.bench", "bench_command",
                    "Measure cycles of units and of the ring against their bounds, and the speed of simulation."),
    "predict": _Entry("host.commands.predict", "predict_command",
                      "Predict cycles and words of a training step on rings that nobody simulates."),
    "sweep": _Entry("host.commands.sweep", "sweep_command",
                    "Compare formats by loss, traffic, cycles, LUTs and Fmax."),
    "tiling": _Entry("host.commands.tiling", "tiling_command",
                     "Search for the factors of matrix products, by cycles that a simulated node counts."),
    "memory": _Entry("host.commands.memory", "memory_command",
                     "Plan the memory of programs, and find out what to keep, to move and to compute again."),
    "relay": _Entry("host.commands.relay", "relay_command",
                    "Train layer by layer from a server, on golden nodes, with a model that is edited meanwhile."),
    "migrate": _Entry("host.commands.migrate", "migrate_command",
                      "Move a training job from a ring to another one while it runs, and compare it with a run "
                      "that stays."),
    "estimate": _Entry("host.commands.estimate", "estimate_command",
                       "Estimate training steps on machines that are then built, by runs on one that is throttled."),
    "quantize": _Entry("host.commands.quantize", "quantize_command",
                       "Quantise a trained perceptron by every scheme, and measure it on the nodes."),
    "info": _Entry("host.commands.info", "info_command",
                   "Show the configuration of a node, its registers, and the versions of tools."),
    "wave": _Entry("host.commands.wave", "wave_command",
                   "Write a waveform of one fused update."),
    "packets": _Entry("host.commands.packets", "packets_command",
                      "Show the packets in a waveform of gradring wave, and write them as a waveform of their own."),
    "examples": _Entry("host.commands.examples", "examples_command",
                       "Copy the examples to a folder of your own, where they can be run and changed."),
    # What follows the script are options of the script.
    "launch": _Entry("host.commands.launch", "launch_command",
                     "Run a PyTorch script, one process for each node, with its sums over a simulated "
                     "ring.", {"allow_interspersed_args": False}),
    "cache": _Entry("host.commands.cache", "cache_app",
                    "Show the build products that are kept: kinds, entries, size and last use."),
}


@functools.cache
def _load(name: str) -> Any:
    """Import a command."""
    entry = COMMANDS[name]
    with ended_at_once():
        app = getattr(importlib.import_module(entry.module), entry.name)
    if not isinstance(app, typer.Typer):
        function, app = app, typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name, context_settings=entry.settings, cls=_Command)(function)
    command = main.get_command(app)
    command.name = name
    return command


class _Command(core.TyperCommand):
    """Command whose help has its options in sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, and options by the headings of their sections."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                other = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or other, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class _Commands(Mapping[str, Any]):
    """Commands by name. A command is imported when it is read."""

    def __getitem__(self, name: str) -> Any:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class CommandGroup(core.TyperGroup):
    """Group of :data:`COMMANDS`. Its help loads none of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands with their help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])
