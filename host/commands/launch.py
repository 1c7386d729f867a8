"""The command `gradring launch`."""

import dataclasses
import enum
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hdl.compression.registry import GRADIENT_CODECS, RAW, WEIGHT_CODECS, ZERO_VALUE
from hdl.config import NodeConfig, Weights
from host.console import (
    ArithmeticOption,
    HostPort,
    Link,
    Progress,
    Threads,
    make_console,
    shown,
    thread_count,
)
from host.gradients.files import check_folder, recorded_files
from host.jobs.checks import gradient_codec
from host.options import Option, Section, check_range, command, option
from host.output import claim
from host.pytorch.choice import LARGEST
from host.pytorch.jobs import Kind, Options
from host.pytorch.launch import LaunchError, launch
from host.pytorch.messages import RECORD
from host.pytorch.report import FILES, build_report, table, verdict, write_report
from host.pytorch.server import Patience
from host.pytorch.software.codecs import kernels_of
from host.training.sparsifier import check_zeros
from host.transports.session import LATENCY, MAX_LATENCY
from sim.verilated import toolchain
from sim.verilated.native import Arithmetic

__all__ = ["launch_command"]


class Backend(enum.StrEnum):
    """Backends that the ring can replace, for CPU tensors."""

    GLOO = "gloo"


@dataclasses.dataclass(frozen=True)
class RankOptions(Section):
    """Number of ranks, and the program that they run."""

    nodes: int = option(4, "--nodes", "-n", help="Number of ranks, and of nodes in the ring, 1 to 16.")
    module: bool = option(False, "--module", "-m", help="SCRIPT is the name of a module.")

    def command(self, script: Sequence[str]) -> list[str]:
        """Arguments for the Python interpreter to run a script, or a module, with its own arguments."""
        if not self.module and not Path(script[0]).is_file():
            raise ValueError(f"Script must be a file, not {script[0]!r}: options of gradring go before it")
        return [*(["-m"] if self.module else []), *script]


@dataclasses.dataclass(frozen=True)
class FormatOptions(Section):
    """Formats of data on the ring."""

    gradients: str | None = option(
        None, help=f"Codec for gradients and their sums; its error is added to the next gradients. One of "
                   f"{', '.join(GRADIENT_CODECS)}.", shown_default=f"{RAW}; {ZERO_VALUE} with --density")
    weights: str = option(Weights.codec, help=f"Codec for new weights, if nodes run the optimizer: "
                                                        f"{', '.join(WEIGHT_CODECS)}.")
    density: float | None = option(
        None, help="Fraction of the gradient elements that nodes send, on average. Nodes send the largest "
                   "elements, and add the rest to the next gradients.", shown_default="all nonzero elements")
    bf16_moments: bool = option(
        False, "--bf16-moments", help="Nodes store momentum and moments as bfloat16. Second moments then do not "
                                      "decay if b2 is above 0.996, as PyTorch's default of 0.999 is.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.density is None:
            return
        if not 0 < self.density <= 1:
            raise ValueError(f"Density must be above 0 and at most 1, not {self.density!r}")
        check_zeros(self.codec)

    @property
    def codec(self) -> str:
        """Codec of gradients."""
        return gradient_codec(self.gradients, self.density)


@dataclasses.dataclass(frozen=True)
class BackendOptions(Section):
    """Backend that the script uses."""

    replace: Backend | None = option(
        None, help="Backend to replace by the ring if a script or framework requests it by name: gloo.")
    require_ring: bool = option(False, "--require-ring", help="End with exit code 1 if the ring was not used.")


@dataclasses.dataclass(frozen=True)
class SimulationOptions(Section):
    """Options of the ring."""

    transport: Kind | None = option(
        None, help="Ring of Verilated nodes, of golden models, or in software, by the ranks themselves.",
        shown_default=f"verilated; software if the first vector is longer than {LARGEST:,} elements")
    threads: Threads = None
    arithmetic: ArithmeticOption = Arithmetic.GATEWARE
    host_port: HostPort = False
    link_latency: Link = LATENCY
    check: bool = option(True, help="Compare all nodes with the golden model after every operation.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("Link latency", self.link_latency, 1, MAX_LATENCY)
        if self.transport in (Kind.GOLDEN, Kind.SOFTWARE) and (names := self.of_gateware):
            raise ValueError(f"Option --{names[0].replace('_', '-')} is for gateware, not for --transport "
                             f"{self.transport}, which has no second witness: leave it out")

    @property
    def of_gateware(self) -> list[str]:
        """Names of the options that only simulations of gateware have, and that are not at their defaults."""
        return [name for name in ("threads", "arithmetic", "host_port", "check")
                if getattr(self, name) != getattr(SimulationOptions, name)]

    def kind(self, formats: FormatOptions) -> Kind | None:
        """Kind of ring, or None to choose it later. Raises ``ValueError`` if it does not support the formats."""
        try:
            if self.transport in (Kind.SOFTWARE, None):
                check_software(formats)
        except ValueError:
            if self.transport is not None:
                raise
            return Kind.VERILATED
        return Kind.VERILATED if self.transport is None and self.of_gateware else self.transport


def check_software(formats: FormatOptions) -> None:
    """Raise ``ValueError`` unless a ring in software supports the formats."""
    if formats.density is not None:
        raise ValueError("Option --density is for nodes, not for --transport software, whose ranks send all elements")
    if formats.codec == ZERO_VALUE:
        raise ValueError("Gradients must be raw for --transport software, not zero_value: their sums have the same "
                         "bits")
    for name in (formats.codec, formats.weights):
        kernels_of(name)


@command
def launch_command(
    *,
    script: Annotated[list[str], typer.Argument(help="The script and its arguments.", metavar="SCRIPT [ARGUMENTS]...",
                                                show_default=False)],
    ranks: RankOptions, formats: FormatOptions, patience: Patience, backend: BackendOptions,
    simulation: SimulationOptions,
    record_gradients: Annotated[Path | None, Option(
        "New folder for samples of each rank's gradients, at most 64 MB in all, which 'gradring lab formats' reads.",
        shown_default="not recorded")] = None,
    output: Annotated[Path, Option(f"Folder for {', '.join(FILES)}.", shown_default="build/launch")] =
        toolchain.BUILD / "launch",
) -> None:
    """Run a PyTorch script, one process for each node, with its sums over a simulated ring."""
    console = make_console()
    if importlib.util.find_spec("torch") is None:
        raise ValueError("PyTorch must be installed for launch: pip install torch, or make .venv/.torch in a clone")
    words = ranks.command(script)
    NodeConfig(gradients=formats.codec, weights=Weights(codec=formats.weights)).check_ring(ranks.nodes)
    transport = simulation.kind(formats)
    simulated = transport in (Kind.VERILATED, None)
    options = Options(nodes=ranks.nodes, gradients=formats.codec, weights=formats.weights, density=formats.density,
                      packed_state=formats.bf16_moments, check=simulation.check,
                      threads=thread_count(simulation.threads, ranks.nodes) if simulated else 1,
                      arithmetic=simulation.arithmetic, transport=transport,
                      host_port=simulation.host_port, link_latency=simulation.link_latency)
    variables = {} if record_gradients is None else {RECORD: str(record_gradients.resolve())}
    if record_gradients is not None:
        check_folder(record_gradients, "--record-gradients")
    claim(output, files=FILES)
    begun = time.monotonic()
    with Progress(console) as progress:
        done = launch(words, options, patience=patience, replace=backend.replace is not None, variables=variables,
                      announce=progress.stage, say=progress.say)
    report = build_report(dataclasses.replace(options, transport=done.kind), done.jobs, gloo=done.server.gloo,
                          backends=done.server.backends.values(), slow=done.server.slow,
                          seconds=time.monotonic() - begun)
    paths = write_report(report, output)
    console.print(table(report))
    if backend.require_ring and not report["operations"]:
        raise LaunchError(verdict(report).rstrip("."))
    console.print(verdict(report), soft_wrap=True)
    console.print(" · ".join(map(shown, paths)), soft_wrap=True)
    if record_gradients is not None:
        sizes = [file.stat().st_size for file in recorded_files(record_gradients)]
        console.print(f"{len(sizes):,} files of gradients, {sum(sizes) / 1e6:,.1f} MB: gradring lab formats "
                      f"--gradients {shown(record_gradients)}", soft_wrap=True)
