"""The command `gradring migrate`: what `make migrate` runs."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdl.board import BOARDS, BoardConfig
from hdl.choices import choice_error, suggestion
from hdl.compression.registry import GRADIENT_CODECS, RAW, WEIGHT_CODECS, ZERO_VALUE
from hdl.config import NodeConfig, Optimizer, SettableVersion, Weights
from host.commands.console import Progress, make_console, new_table, shown, thread_count
from host.options import SEEDS, check_range
from host.output import claim, prepare, write_json
from host.transports.session import LATENCY, MAX_LATENCY, TransportName, open_session
from sim.verilated import toolchain

if TYPE_CHECKING:
    from host.migration.site import Fabric, Site

__all__ = ["migrate_command"]

_FILES = ("migrate.json", "ledger.json", "source/checkpoint.tar", "target/checkpoint.tar")
#: Boards whose nodes train in binary32.
_JOBS = [name for name, board in BOARDS.items() if not board.node.is_int16]


def node_of_job(*, interval: int, weights: str, gradients: str) -> NodeConfig:
    """Node of a site, with an optimizer that takes ``interval`` cycles for an element, and codecs."""
    return NodeConfig(optimizer=Optimizer(interval=interval), weights=Weights(codec=weights), gradients=gradients,
                      masking=False, sparsify=False, features=(SettableVersion(),))


def migrate_command(
    nodes: Annotated[int | None, typer.Option(
        "--nodes", "-n", help="Nodes of both rings. [default: 4, or those of --board]", show_default=False)] = None,
    steps: Annotated[int, typer.Option(help="Steps of the run.")] = 24,
    after: Annotated[int, typer.Option(help="Steps after which the job is moved.")] = 11,
    optimizer: Annotated[str, typer.Option(help="momentum or adam.")] = "momentum",
    hidden: Annotated[str, typer.Option(help="Hidden layers: 64,32; or none.")] = "none",
    weights: Annotated[str, typer.Option(help="Codec of weights.")] = RAW,
    gradients: Annotated[str, typer.Option(help="Codec of gradients.")] = ZERO_VALUE,
    latency: Annotated[int, typer.Option(help="Cycles of the target's links.")] = 40,
    interval: Annotated[int, typer.Option(help="Cycles of the target's optimizer for an element.")] = 2,
    threads: Annotated[int, typer.Option(help="Threads of the target's simulation.")] = 2,
    transport: Annotated[str, typer.Option(
        help="Target: verilated, board for a simulated one, or serial for the one at --device.")] = "verilated",
    source_transport: Annotated[str, typer.Option(
        "--source", help="Source: verilated, board, or serial.")] = "verilated",
    board: Annotated[str | None, typer.Option(
        help=f"Board whose build a site has: configuration of the nodes, their number, clock and baud rate: "
             f"{', '.join(BOARDS)}. [default: a simulated one with nodes that fit]", show_default=False)] = None,
    device: Annotated[str | None, typer.Option(
        help="Serial port of the board, as /dev/ttyUSB0.", show_default=False)] = None,
    key: Annotated[Path | None, typer.Option(
        help="File of the key of manifests. [default: the user's key]", show_default=False)] = None,
    owner_key: Annotated[Path | None, typer.Option(
        help="File of the key of the model's owner. [default: owner.key in the output folder]",
        show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder of migrate.json, the ledger and checkpoints. [default: "
                                              "build/migrate]", show_default=False)] = toolchain.BUILD / "migrate",
) -> None:
    """Move a training job from a ring to another one while it runs, and compare it with a run that stays."""
    from host.checkpoints.keys import key_of, read_key, user_key
    from host.driver.memory import fitted
    from host.migration.ledger import Entry, Ledger
    from host.migration.migrate import migrate
    from host.migration.site import WORD_BITS, Keys, Site
    from host.models.digits import digits
    from host.models.widths import widths
    from host.training.optimizers import OptimizerName, create
    from host.training.record import TrainingConfig
    from host.training.workloads import Classifier

    built = _built(board, device, transport, source_transport)
    if nodes is None:
        nodes = 4 if built is None else built.nodes
    if built is not None and nodes != built.nodes:
        raise ValueError(f"Nodes must be the {built.nodes} of {board}, not {nodes}")
    check_range("Nodes", nodes, 1, 16)
    check_range("Steps", steps, 1, 100_000)
    check_range("Steps before the move", after, 0, steps)
    check_range("Latency of the target's links", latency, 1, MAX_LATENCY)
    check_range("Seed", seed, 0, SEEDS)
    threads = thread_count(threads, nodes)
    if optimizer not in ("momentum", "adam"):
        raise ValueError(f"Optimizer of a job to be moved must be momentum or adam, not {optimizer!r}"
                         f"{suggestion(('momentum', 'adam'), optimizer)}")
    for name, codecs, given in (("weights", WEIGHT_CODECS, weights), ("gradients", GRADIENT_CODECS, gradients)):
        if given not in codecs:
            raise ValueError(choice_error(f"Codec of {name}", codecs, given))
        if name == "weights" and WEIGHT_CODECS[given].codebook_words:
            raise ValueError(f"Codec of weights must have no codebook here, not be {given!r}")
    node_of_job(interval=interval, weights=weights, gradients=gradients)
    config = TrainingConfig(max_steps=steps, interval=steps, hidden=widths(hidden), seed=seed,
                            optimizer=create(OptimizerName(optimizer)))
    manifests = user_key() if key is None else read_key(key)
    owner = None if owner_key is None else read_key(owner_key)
    prepare(output, files=_FILES[:2])
    keys = Keys(manifests, key_of(output / "owner.key") if owner is None else owner)
    data, console = digits(), make_console()

    def workload() -> Classifier:
        return Classifier(data, config.hidden)

    def node(interval: int) -> NodeConfig:
        made = node_of_job(interval=interval, weights=weights, gradients=gradients)
        return fitted(made, [config.allocation(workload().parameters.size)], nodes=nodes)

    def site(name: str, fabric: Callable[[], contextlib.AbstractContextManager["Fabric"]]) -> Site:
        return Site(name, output / name, fabric=fabric, workload=workload, config=config, keys=keys)

    if built is not None and fitted(built.node, [config.allocation(workload().parameters.size)],
                                    nodes=nodes, planes=built.node.memories.planes) != built.node:
        raise ValueError(f"Model must have room in the memories of {board}, not {workload().parameters.size:,} "
                         f"parameters")
    claim(output, files=_FILES)
    sites = [site("source", _fabric(node(1), nodes=nodes, transport=TransportName(source_transport), board=built,
                                    device=device)),
             site("target", _fabric(node(interval), nodes=nodes, latency=latency, threads=threads,
                                    transport=TransportName(transport), board=built, device=device))]
    stays = site("stays", _fabric(node(1), nodes=nodes))
    source, target = sites
    ledger = Ledger(output / "ledger.json")
    ledger.commit(Entry(source.name, 0))
    try:
        with Progress(console) as progress:
            progress.stage("run that stays", steps)
            stays.begin()
            expected = _finish(stays, progress)
            progress.stage("run that moves", steps)
            source.begin()
            assert source.run is not None
            for _ in range(after):
                source.run.advance()
            progress.say(f"moved after step {after}")
            downtime = migrate(source, target, ledger)
            lines = {one.name: one.pass_cycles(downtime.live_words) for one in sites}
            same = _finish(target, progress) == expected
    finally:
        for one in (*sites, stays):
            one.close()
    columns = ("read", "load", "read back", "start", "in all", "bound")
    table = new_table("cycles in which the job stood still", columns)
    table.add_row(*(f"{value:,}" for value in (downtime.read, downtime.load, downtime.read_back, downtime.start,
                                               downtime.cycles, int(downtime.bound))))
    console.print(table)
    for name, wire in lines.items():
        if wire:
            console.print(f"{name}: the words of a pass take {wire:,} cycles on the board's line, {nodes} nodes * "
                          f"{downtime.live_words:,} words * {WORD_BITS} * clock / baud", soft_wrap=True)
    console.print(f"{downtime.live_words:,} live words a node · moved after step {after} of {steps} · final weights, "
                  f"state and losses {'have' if same else 'have NOT'} the bits of the run that stayed",
                  soft_wrap=True)
    write_json(output / _FILES[0], {
        **dataclasses.asdict(downtime), "cycles": downtime.cycles, "bound": downtime.bound, "nodes": nodes,
        "steps": steps, "after": after, "optimizer": optimizer, "weights": weights, "gradients": gradients,
        "transport": transport, "source": source_transport, "board": board, "line": lines, "same": same})
    console.print(shown(output / _FILES[0]), soft_wrap=True)
    if not same:
        raise typer.Exit(1)


def _built(board: str | None, device: str | None, transport: str, source: str) -> BoardConfig | None:
    """The board whose build a site has, if one is named; a ``ValueError`` for what cannot be a source or a target."""
    for name, given in (("Target", transport), ("Source", source)):
        if given not in ("verilated", "board", "serial"):
            raise ValueError(f"{name} must be verilated, board or serial, not {given!r}"
                             f"{suggestion(('verilated', 'board', 'serial'), given)}")
    names = [transport, source]
    if board is not None and (board not in _JOBS or names == ["verilated"] * 2):
        raise ValueError(f"Board must be one of {', '.join(_JOBS)}, for a source or a target that is a board, not "
                         f"{board!r}{suggestion(_JOBS, board)}")
    if names.count("serial") != (device is not None) or (device is not None and board is None):
        raise ValueError("Serial port and board must be given for a source or a target that is serial, and for no "
                         "other")
    return None if board is None else BOARDS[board]


def _fabric(config: NodeConfig, *, nodes: int, latency: int = LATENCY, threads: int = 1,
            transport: TransportName = TransportName.VERILATED, board: BoardConfig | None = None,
            device: str | None = None) -> Callable[[], contextlib.AbstractContextManager["Fabric"]]:
    """Opens a ring, or a board, of the build of a ``board`` if that is given."""
    from host.migration.site import Fabric
    from sim.verilated.board import RATES

    options: dict[str, Any] = {"latency": latency, "threads": threads}
    line = None
    if transport is not TransportName.VERILATED:
        rates = RATES if board is None else {"clock": board.clock, "baud": board.baud}
        line, options = (rates["clock"], rates["baud"]), {"rates": rates}
        config = config if board is None else board.node
    if transport is TransportName.SERIAL:
        assert line is not None
        options = {"device": device, "frequency": line[0], "baud": line[1]}

    @contextlib.contextmanager
    def opens() -> Iterator[Fabric]:
        with open_session(config, nodes=nodes, transport=transport, **options) as session:
            # A board counts cycles that a load clears, so there the time of the clock counts.
            clock = ((lambda: int(time.monotonic() * line[0])) if transport is TransportName.SERIAL and line
                     else (lambda: session.cycle))
            yield Fabric(session.ring, clock, line)

    return opens


def _finish(site: "Site", progress: Progress) -> tuple[list[bytes], list[float]]:
    """Do the rest of a run: bits of the nodes, which are those of the golden model, and losses."""
    run = site.run
    assert run is not None
    while not run.complete:
        run.advance()
        progress.advance(f"loss {run.training.steps[-1].loss:.4f}")
    losses = [step.loss for step in run.finish().steps]
    state = run.state()
    reference = state["memory"]["reference"]
    arrays = [state["parameters"], reference["weights"], reference["master"], *reference["state"]]
    return [array.tobytes() for array in arrays], losses
