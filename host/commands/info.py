"""The command `gradring info`."""

import importlib.metadata

from rich.table import Table

from hdl.config import NodeConfig
from hdl.config.couplings import COUPLINGS
from hdl.config.forms import as_options
from host.console import make_console
from host.run.couplings import COUPLINGS as RUN_COUPLINGS
from host.versions import PACKAGES
from sim.verilated import toolchain

__all__ = ["info_command"]


def info_command() -> None:
    """Show the configuration of a node, its registers, and the versions of tools."""
    from hdl.control.registers import REGISTERS

    console = make_console()
    config = NodeConfig()
    parameters = Table(title="configuration", title_justify="left", show_header=False, border_style="dim")
    for name, value in as_options(config).items():
        parameters.add_row(name, f"{value}")
    parameters.add_row("hash", f"0x{config.hash:08x}")
    console.print(parameters)
    couplings = Table("sections", "rule", "reason", title="couplings of a node's sections", title_justify="left",
                      border_style="dim")
    for coupling in COUPLINGS:
        couplings.add_row(", ".join(coupling.sections), coupling.rule, coupling.reason)
    console.print(couplings)
    options = Table("option", "is for", "reason", title="couplings of a run's options", title_justify="left",
                    border_style="dim")
    for coupled in RUN_COUPLINGS:
        options.add_row(coupled.left, coupled.condition, coupled.reason)
    console.print(options)
    versions = Table(title="versions", title_justify="left", show_header=False, border_style="dim")
    for package in PACKAGES:
        versions.add_row(package, importlib.metadata.version(package))
    versions.add_row("C++ compiler", toolchain.compiler())
    console.print(versions)
    registers = Table("address", "name", "access", "description", title="registers", title_justify="left",
                      border_style="dim")
    for register in REGISTERS:
        registers.add_row(f"{register.address}", register.name, register.access.value, register.doc)
    console.print(registers)
