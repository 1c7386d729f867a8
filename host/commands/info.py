"""The command `gradring info`."""

import importlib.metadata

from hdl.config import NodeConfig
from hdl.config.couplings import all_couplings
from hdl.config.forms import as_options
from host.columns import Column, Table, pairs, shown
from host.console import make_console
from host.run.couplings import COUPLINGS as RUN_COUPLINGS
from host.versions import PACKAGES
from sim.verilated import toolchain

__all__ = ["info_command"]


def info_command() -> None:
    """Show a node's configuration, its registers, and tool versions."""
    from hdl.control.registers import REGISTERS

    config = NodeConfig()
    options = [*as_options(config).items(), ("hash", f"0x{config.hash:08x}")]
    versions = [*((package, importlib.metadata.version(package)) for package in PACKAGES),
                ("C++ compiler", toolchain.compiler())]
    make_console().print(
        pairs("configuration", [(name, shown(value)) for name, value in options]),
        Table("couplings of a node's sections", [Column(name) for name in ("sections", "rule", "reason")],
              all_couplings()),
        Table("couplings of a run's options", (Column("left", title="option"), Column("condition", title="is for"),
                                               Column("reason")), RUN_COUPLINGS),
        pairs("versions", versions),
        Table("registers", (Column("address"), Column("name"), Column("access", format=lambda access: access.value),
                            Column("doc", title="description")), REGISTERS))
