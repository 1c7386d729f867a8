"""The command `gradring launch`."""

import enum
import importlib.util
import time
from pathlib import Path
from typing import Annotated

import typer

from hdl.compression.registry import GRADIENT_CODECS, RAW, WEIGHT_CODECS, ZERO_VALUE
from hdl.config import NodeConfig, Weights
from host.commands.console import (
    ArithmeticOption,
    HostPort,
    Link,
    Progress,
    Threads,
    make_console,
    shown,
    thread_count,
)
from host.jobs.checks import gradient_codec
from host.options import COUNT, check_range, command
from host.output import claim
from host.pytorch.jobs import Options
from host.pytorch.launch import LaunchError, launch
from host.pytorch.report import FILES, build_report, table, verdict, write_report
from host.pytorch.server import Patience
from host.training.density import check_zeros
from host.transports.session import LATENCY, MAX_LATENCY
from sim.verilated import toolchain
from sim.verilated.native import Arithmetic

__all__ = ["launch_command"]

class Backend(enum.StrEnum):
    """Backends that the ring can replace: of tensors on the CPU."""

    GLOO = "gloo"


@command
def launch_command(
    script: Annotated[list[str], typer.Argument(help="The script and its arguments.", metavar="SCRIPT [ARGUMENTS]...",
                                                show_default=False)],
    nodes: Annotated[int, typer.Option("--nodes", "-n", help="Ranks, and nodes in the ring, 1 to 16.")] = 4,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is the name of a module.")] = False,
    gradients: Annotated[str | None, typer.Option(
        help=f"Codec of gradients and their sums; its loss is added to the next ones: "
             f"{', '.join(GRADIENT_CODECS)}. [default: {RAW}; {ZERO_VALUE} with a density]", show_default=False)
    ] = None,
    weights: Annotated[str, typer.Option(
        help=f"Codec of new weights, with optimizers on the nodes: {', '.join(WEIGHT_CODECS)}.")
    ] = Weights.codec,
    density: Annotated[float | None, typer.Option(
        help="Part of the elements of gradients that nodes send, on average: the largest ones; the others wait. "
             "[default: all that are not zero]", show_default=False)] = None,
    bf16_moments: Annotated[bool, typer.Option(
        "--bf16-moments", help="Nodes store momentum and moments as bfloat16. A second moment does not decay then "
                                  "with a b2 above 0.996, such as PyTorch's 0.999.")] = False,
    timeout: Annotated[float, typer.Option(
        help="Seconds for which ranks wait for the others; less than the timeout of init_process_group.")
    ] = Patience.timeout,
    slow: Annotated[float, typer.Option(
        help="Seconds after which the ranks that the others wait for are named.")] = Patience.slow,
    replace: Annotated[Backend | None, typer.Option(
        help="Backend that means the ring where a script, or a framework, has its name: gloo.", show_default=False)
    ] = None,
    require_ring: Annotated[bool, typer.Option(
        "--require-ring", help="End with exit code 1 if nothing went over the ring.")] = False,
    threads: Threads = None,
    arithmetic: ArithmeticOption = Arithmetic.GATEWARE,
    host_port: HostPort = False,
    link_latency: Link = LATENCY,
    check: Annotated[bool, typer.Option(help="Compare all nodes with the golden model after every operation.")
                     ] = True,
    output: Annotated[Path, typer.Option(help=f"Folder of {', '.join(FILES)}. [default: build/launch]",
                                         show_default=False)] = toolchain.BUILD / "launch",
) -> None:
    """Run a PyTorch script, one process for each node, with its sums over a simulated ring."""
    console = make_console()
    if importlib.util.find_spec("torch") is None:
        raise ValueError("PyTorch must be installed for launch: pip install torch, or make .venv/.torch in a clone")
    if not module and not Path(script[0]).is_file():
        raise ValueError(f"Script must be a file, not {script[0]!r}: options of gradring go before it")
    codec = gradient_codec(gradients, density)
    NodeConfig(gradients=codec, weights=Weights(codec=weights)).check_ring(nodes)
    if density is not None and not 0 < density <= 1:
        raise ValueError(f"Density must be above 0 and at most 1, not {density!r}")
    if density is not None:
        check_zeros(codec)
    options = Options(nodes=nodes, gradients=codec, weights=weights, density=density, packed_state=bf16_moments,
                      check=check, threads=thread_count(threads, nodes), arithmetic=arithmetic, host_port=host_port,
                      link_latency=link_latency)
    check_range("Link latency", link_latency, 1, MAX_LATENCY)
    check_range("Timeout", timeout, 0, COUNT)
    patience = Patience(slow=slow, timeout=timeout)
    claim(output, files=FILES)
    begun = time.monotonic()
    with Progress(console) as progress:
        done = launch([*(["-m"] if module else []), *script], options, patience=patience, replace=replace is not None,
                      announce=progress.stage, say=progress.say)
    report = build_report(options, done.jobs, gloo=done.server.gloo, backends=done.server.backends.values(),
                          slow=done.server.slow, seconds=time.monotonic() - begun)
    paths = write_report(report, output)
    console.print(table(report))
    if require_ring and not report["operations"]:
        raise LaunchError(verdict(report).rstrip("."))
    console.print(verdict(report), soft_wrap=True)
    console.print(" · ".join(map(shown, paths)), soft_wrap=True)
