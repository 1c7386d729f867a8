"""The command `gradring relay-nodes`: what `make sim RELAY=1` runs."""

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from host.commands.console import Progress, make_console, shown, thread_count
from host.options import COUNT, SEEDS, check_range
from host.output import claim, prepare, write_json
from sim.verilated import toolchain
from sim.verilated.native import Arithmetic

if TYPE_CHECKING:
    from host.relay.checkpoint import RelayKeeper
    from host.relay.measured import SetTimes
    from host.relay.node_run import NodeRun
    from host.relay.program_timeline import Far
    from host.relay.run import Assessor

__all__ = ["relay_nodes_command"]

_FILES = ("relay-nodes.json", "checkpoint.tar")


def relay_nodes_command(
    hidden: Annotated[str, typer.Option(help="Hidden layers: 64x16 is 16 of 64; or none.")] = "64x4",
    nodes: Annotated[int, typer.Option(help="Workers.")] = 4,
    microbatch: Annotated[int | None, typer.Option(
        help="Examples of a microbatch. [default: the most that fit]", show_default=False)] = None,
    microbatches: Annotated[int | None, typer.Option(
        help="Microbatches of a set. [default: chosen by what the first set takes]", show_default=False)] = None,
    sets: Annotated[int, typer.Option(help="Sets.")] = 6,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 0.05,
    momentum: Annotated[float, typer.Option(help="Momentum.")] = 0.9,
    plateau: Annotated[bool, typer.Option("--plateau", help="Add a layer wherever the loss stands still.")] = False,
    format: Annotated[str, typer.Option(
        help="Format of weights in FETCH: raw, mx4, mx6 or mx9, of all layers or of each, with commas.")] = "raw",
    underflow: Annotated[bool, typer.Option(
        "--underflow", help="Widen mx4 to mx6 where more than 10 % of a layer's weights are zeros.")] = False,
    far: Annotated[str, typer.Option(help="Words per cycle of the server's far memory.")] = "4",
    worker_far: Annotated[str, typer.Option(help="Words per cycle of the workers' far memories.")] = "1",
    window: Annotated[int, typer.Option(help="Elements of a window, and of an accumulator.")] = 4160,
    resident: Annotated[bool, typer.Option("--resident", help="Have all layers stay on the workers.")] = False,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads of the simulation.")] = 2,
    arithmetic: Annotated[Arithmetic, typer.Option(help="Float units of the simulation.")] = Arithmetic.GATEWARE,
    checkpoint: Annotated[int, typer.Option(
        help="Write checkpoint.tar after so many sets each, and after the last one; 0 for none, unless the run is "
             "interrupted.")] = 0,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Go on from checkpoint.tar in the output folder, if there is one.")] = False,
    output: Annotated[Path, typer.Option(help="Folder of relay-nodes.json and checkpoint.tar. [default: build/relay]",
                                         show_default=False)] = toolchain.BUILD / "relay",
) -> None:
    """Train layer by layer from a server, on simulated nodes, and compare with golden ones."""
    from hdl.config import NodeConfig
    from host.checkpoints.keys import user_key
    from host.models.digits import digits
    from host.models.widths import widths as hidden_widths
    from host.relay.assessor import Plateau, Together, Underflow
    from host.relay.checkpoint import RelayKeeper
    from host.relay.edits import Structure
    from host.relay.node_run import NodeRun, check_structure
    from host.relay.opening import LATENCY, open_relay, relay_nodes
    from host.relay.plan import cut, make_relay_plan
    from host.relay.program_timeline import Far
    from host.signals import GRACE, Interrupted, handle_signals
    from host.training.optimizers import SGD

    check_range("Workers", nodes, 1, 15)
    check_range("Sets", sets, 1, 100_000)
    check_range("Microbatches", microbatches, 1, 64)
    check_range("Sets between checkpoints", checkpoint, 0, 100_000)
    check_range("Learning rate", rate, 0, COUNT)
    check_range("Momentum", momentum, 0, 1)
    check_range("Seed", seed, 0, SEEDS)
    threads = thread_count(threads, nodes + 1)
    speed, worker_speed = _speed("the server's far memory", far), _speed("the workers' far memories", worker_far)
    layers, data, optimizer = hidden_widths(hidden), digits(), SGD(rate, momentum=momentum)
    widths = (data.train_x.shape[1], *layers, data.classes)
    units, windows = cut(widths, window=window, lanes=NodeConfig.lanes), 2
    if resident:  # one window more than a relay has at least, and one for a layer that comes
        windows = max(3, len(units) + plateau)
    configs = relay_nodes(words=sum(unit.length for unit in units), planes=optimizer.planes, window=window,
                          windows=windows)
    most = len(data.train_y) // nodes
    plan = make_relay_plan(widths, worker=configs.memories, count=microbatches or 1, microbatch=microbatch, most=most)
    formats = tuple(format.split(","))
    structure = Structure(widths, formats * (len(widths) - 1) if len(formats) == 1 else formats, microbatches or 1,
                          rate, plan.microbatch, configs.memories)
    check_structure(structure, configs.worker, configs.server, planes=optimizer.planes)
    rules: list[Assessor] = [*([Plateau()] if plateau else []), *([Underflow()] if underflow else [])]
    pace = Far(lanes=NodeConfig.lanes, rate=worker_speed, latency=LATENCY)
    user_key()  # of checkpoints
    prepare(output, files=_FILES)
    keeper = RelayKeeper(output / _FILES[1], {
        "hidden": hidden, "workers": nodes, "microbatch": microbatch, "microbatches": microbatches, "rate": rate,
        "momentum": momentum, "plateau": plateau, "format": format, "underflow": underflow, "window": window,
        "resident": resident, "seed": seed}, sets=checkpoint)
    kept = resume and keeper.check()
    claim(output, files=_FILES, keep=_FILES[1:] if kept else ())
    console = make_console()
    console.print(plan.line, soft_wrap=True)
    if resume:
        console.print(f"{shown(keeper.path)}: " + ("the run goes on from there" if kept else
                                                   "there is none, so the run begins at its first set"),
                      soft_wrap=True)
    stopped, found = 0, None
    begun = {"widths": widths, "microbatch": plan.microbatch, "peak": plan.peak}
    with Progress(console) as progress:
        progress.stage("build", 1)
        with open_relay(configs, workers=nodes, rate=speed, worker_rate=worker_speed, threads=threads,
                        arithmetic=arithmetic) as (ring, simulation), handle_signals(grace=GRACE) as signals:
            run = NodeRun(ring, data, structure, optimizer=optimizer, seed=seed, traced=True,
                          assessor=Together(*rules) if rules else None)
            rows: list[dict[str, Any]] = keeper.go_on(ring, run) if kept else []
            found = _so_far(run, rows, begun) if rows else None
            progress.stage("relay", sets - len(rows))
            try:
                for number in range(len(rows), sets):
                    signals.check()
                    before = simulation.cycle
                    report = run.step()
                    run.compare()
                    signals.settle()
                    rows.append(_row(run, number, simulation.cycle - before, speed=speed, far=pace))
                    progress.advance(f"loss {report.mean_loss:.4f}, stalled {rows[-1]['stall']:.1%}")
                    if number == 0 and microbatches is None:
                        run.choose(rows[0]["chosen"])
                    keeper.keep(ring, run, rows, last=number + 1 == sets)
                    found = _so_far(run, rows, begun)
            except Interrupted as interrupted:  # the report is of the sets that have ended
                if found is None or len(found.result["times"]) < sets:
                    stopped = interrupted.signal
                    keeper.write()
    if found is not None:
        _report(console, found, output / _FILES[0], interrupted=bool(stopped))
    if stopped:
        console.print(_advice(keeper), soft_wrap=True)
        raise typer.Exit(128 + stopped)
    if found is not None and not found.result["same"]:
        raise typer.Exit(1)


@dataclasses.dataclass(frozen=True)
class _Found:
    """Report of the sets that have ended, and its last line."""

    result: dict[str, Any]
    verdict: str


def _so_far(run: "NodeRun", rows: list[dict[str, Any]], begun: dict[str, Any]) -> _Found:
    """Report of the sets so far, made between two sets, since within one the golden nodes are at neither."""
    accuracy, same = run.accuracy, run.same
    return _Found({**run.described(), **begun, "same": same, "accuracy": accuracy, "times": list(rows)},
                  f"{accuracy:.2%} of test examples · nodes have {'the' if same else 'OTHER'} bits "
                  f"{'of' if same else 'than'} golden ones · {' · '.join(edit.line for edit in run.log)}")


def _report(console: Console, found: _Found, path: Path, *, interrupted: bool) -> None:
    """Print and write the report."""
    rows = found.result["times"]
    console.print(_table(rows))
    console.print(_link(rows[-1]), soft_wrap=True)
    console.print(found.verdict, soft_wrap=True)
    write_json(path, {**found.result, "interrupted": interrupted})
    console.print(shown(path), soft_wrap=True)


def _advice(keeper: "RelayKeeper") -> str:
    """Line about the next run, after one that was interrupted."""
    if not keeper.sets_kept:
        return "interrupted; no set has ended, so that the next run begins at its first set"
    return (f"interrupted; {shown(keeper.path)} holds {keeper.sets_kept} sets: the same command with --resume (make: "
            f"RESUME=1) goes on from there")


def _speed(what: str, given: str) -> Fraction:
    """Words per cycle of a far memory."""
    try:
        speed = Fraction(given)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"Rate of {what} must be words per cycle, such as 4 or 1/2, not {given!r}") from None
    if not 0 < speed <= 4:
        raise ValueError(f"Rate of {what} must be above 0 and at most 4 words per cycle, not {given!r}")
    return speed


def _row(run: "NodeRun", number: int, cycles: int, *, speed: Fraction, far: "Far") -> dict[str, Any]:
    """Figures of a set, beside those of its timeline."""
    from host.relay.timeline import microbatches

    times: SetTimes = run.times[number - len(run.reports)]
    costs, units = run.costs(times, rate=speed), run.reports[number].structure.plan.units
    model, packets = run.timeline(number, rate=speed, far=far)
    longest = max(range(len(units)), key=lambda unit: units[unit].words)
    link = {f"measured_{kind}": sorted(found for (one, unit), found in times.links.items() if one == kind and all(
        getattr(units[unit], name) == getattr(units[longest], name) for name in ("words", "format")))
            for kind in ("fetch", "push")}
    return {"set": number, "microbatches": run.reports[number].structure.count,
            "loss": run.reports[number].mean_loss, "cycles": times.cycles,
            "with_host": cycles, "stall": times.run.stall, "idle": times.run.idle, "modelled_stall": model.stall,
            "modelled_idle": model.idle, "forward": costs[longest].forward, "backward": costs[longest].backward,
            "words": units[longest].words, "fetch": costs[longest].fetch, "push": costs[longest].push,
            "packets_fetch": packets[longest].fetch, "packets_push": packets[longest].push, **link,
            "chosen": microbatches(costs)}


def _link(row: dict[str, Any]) -> str:
    """Line about FETCH and PUSH of the longest units, in the last set."""
    parts = []
    for kind in ("fetch", "push"):
        found = row[f"measured_{kind}"]
        measured = " to ".join(f"{one:,}" for one in dict.fromkeys((found[0], found[-1]))) if found else "not"
        parts.append(f"{kind.upper()} {measured} measured, {row[f'packets_{kind}']:,} by packets, {row[kind]:,} by "
                     f"the formula for u")
    return f"cycles for {row['words']:,} words in set {row['set']}: {'; '.join(parts)}"


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="sets on nodes of u microbatches; modelled: a timeline of measured executions, and of moves",
                  title_justify="left")
    for name in ("set", "u", "loss", "cycles", "stall, %", "modelled", "idle, %", "modelled "):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows if len(rows) <= 10 else [*rows[:5], *rows[-5:]]:
        table.add_row(*(str(row[name]) for name in ("set", "microbatches")), f"{row['loss']:.4f}",
                      f"{row['cycles']:,}", *(f"{100 * row[name]:.2f}" for name in (
                          "stall", "modelled_stall", "idle", "modelled_idle")))
    return table
