"""The commands beside `gradring train`, in the order in which the help lists them."""

import typer

from host.commands.bench import bench_command
from host.commands.cache import cache_app
from host.commands.estimate import estimate_command
from host.commands.examples import examples_command
from host.commands.info import info_command
from host.commands.launch import SETTINGS as LAUNCH_SETTINGS
from host.commands.launch import launch_command
from host.commands.memory import memory_command
from host.commands.migrate import migrate_command
from host.commands.packets import packets_command
from host.commands.predict import predict_command
from host.commands.quantize import quantize_command
from host.commands.relay import relay_command
from host.commands.relay_nodes import relay_nodes_command
from host.commands.sweep import sweep_command
from host.commands.tiling import tiling_command
from host.commands.wave import wave_command

__all__ = ["add_commands"]


def add_commands(app: typer.Typer) -> None:
    """Add all of them to the command line."""
    app.command("bench")(bench_command)
    app.command("predict")(predict_command)
    app.command("sweep")(sweep_command)
    app.command("tiling")(tiling_command)
    app.command("memory")(memory_command)
    app.command("relay")(relay_command)
    app.command("relay-nodes")(relay_nodes_command)
    app.command("migrate")(migrate_command)
    app.command("estimate")(estimate_command)
    app.command("quantize")(quantize_command)
    app.command("info")(info_command)
    app.command("wave")(wave_command)
    app.command("packets")(packets_command)
    app.command("examples")(examples_command)
    app.command("launch", context_settings=LAUNCH_SETTINGS)(launch_command)
    app.add_typer(cache_app, name="cache")
