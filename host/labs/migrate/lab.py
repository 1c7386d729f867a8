"""The lab `gradring lab migrate`, which moves a running training job between rings."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from hdl.board import BOARDS, BoardConfig
from hdl.choices import suggestion
from hdl.compression.registry import GRADIENT_CODECS, RAW, WEIGHT_CODECS, ZERO_VALUE
from hdl.config import NodeConfig, Optimizer, Weights
from hdl.features.settable_version.feature import SettableVersion
from host.checkpoints.keys import key_of, read_key, user_key
from host.columns import Column, Table, columns_of
from host.console import Progress, shown, thread_count
from host.driver.memory import fitted
from host.labs.kit import BUILD, Results, end
from host.migration.migrate import Downtime, Entry, Ledger, migrate
from host.migration.site import WORD_BITS, Fabric, Keys, Site
from host.models.digits import digits
from host.models.layers import widths
from host.options import SEEDS, Option, Section, check_range, command, option
from host.output import prepare
from host.schema import Schema, write_report
from host.training.optimizers import OptimizerName, create
from host.training.record import TrainingConfig
from host.training.workloads import Classifier
from host.transports.session import LATENCY, MAX_LATENCY, TransportName, open_session
from sim.verilated.board import RATES

__all__ = ["migrate_lab"]

_FILES = ("migrate.json", "ledger.json", "source/checkpoint.tar", "target/checkpoint.tar")
_OPTIMIZERS, _TRANSPORTS = ("momentum", "adam"), ("verilated", "board", "serial")
#: Names of the boards that have nodes for training in binary32.
_JOBS = [name for name in BOARDS.present if BOARDS[name].node.has_ring]

#: Schema of a migration's report.
SCHEMA = Schema("gradring.migration", 1, columns_of(
    Downtime, "cycles bound nodes steps after optimizer weights gradients transport source board line bit_exact"))


@dataclasses.dataclass(frozen=True)
class JobOptions(Section):
    """Options of the training job to move."""

    steps: int = option(24, help="Number of steps of the run.", minimum=1, maximum=100_000)
    after: int = option(11, help="Number of steps before the job is moved.")
    optimizer: str = option("momentum", help="Optimizer: momentum or adam.")
    hidden: str = option("none", help="Widths of hidden layers, such as 64,32, or none.")
    weights: str = option(RAW, help="Codec for weights.", label="Codec of weights", choices=WEIGHT_CODECS)
    gradients: str = option(ZERO_VALUE, help="Codec for gradients.", label="Codec of gradients",
                            choices=GRADIENT_CODECS)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("Steps before the move", self.after, 0, self.steps)
        if self.optimizer not in _OPTIMIZERS:
            raise ValueError(f"Optimizer of a job to be moved must be momentum or adam, not {self.optimizer!r}"
                             f"{suggestion(_OPTIMIZERS, self.optimizer)}")
        if WEIGHT_CODECS[self.weights].codebook_words:
            raise ValueError(f"Codec of weights must have no codebook here, not be {self.weights!r}")

    def config(self, seed: int) -> TrainingConfig:
        """Return the training configuration of the job to move."""
        return TrainingConfig(max_steps=self.steps, interval=self.steps, hidden=widths(self.hidden), seed=seed,
                              optimizer=create(OptimizerName(self.optimizer)))

    def node(self, interval: int) -> NodeConfig:
        """Configure the nodes of a site, with an optimizer that takes ``interval`` cycles per element."""
        return NodeConfig(optimizer=Optimizer(interval=interval), weights=Weights(codec=self.weights),
                          gradients=self.gradients, masking=False, sparsify=False, features=(SettableVersion(),))


@dataclasses.dataclass(frozen=True)
class TargetOptions(Section):
    """Options of the ring that the job moves to."""

    latency: int = option(40, help="Latency of the target's links in cycles.", label="Latency of the target's links",
                          minimum=1, maximum=MAX_LATENCY)
    interval: int = option(2, help="Cycles per element of the target's optimizer.")
    threads: int = option(2, help="Number of threads of the target's simulation.")


@dataclasses.dataclass(frozen=True)
class SiteOptions(Section):
    """Options of the nodes at the source and at the target."""

    transport: str = option("verilated",
                            help="Target: verilated, board (a simulated board), or serial (the board at --device).")
    source_transport: str = option("verilated", "--source", help="Source: verilated, board or serial.")
    board: str | None = option(None, help=f"Board that determines the configuration and number of a site's nodes, "
                                          f"the clock and the baud rate: {', '.join(BOARDS)}.",
                               shown_default="a simulated board with suitable nodes")
    device: str | None = option(None, help="Serial port of the board, such as /dev/ttyUSB0.")

    def __post_init__(self) -> None:
        for name, value in (("Target", self.transport), ("Source", self.source_transport)):
            if value not in _TRANSPORTS:
                raise ValueError(f"{name} must be verilated, board or serial, not {value!r}"
                                 f"{suggestion(_TRANSPORTS, value)}")
        transports = [self.transport, self.source_transport]
        if self.board is not None and (self.board not in _JOBS or transports == ["verilated"] * 2):
            raise ValueError(f"Board must be one of {', '.join(_JOBS)}, for a source or a target that is a board, "
                             f"not {self.board!r}{suggestion(_JOBS, self.board)}")
        if transports.count("serial") != (self.device is not None) or (self.device is not None and not self.board):
            raise ValueError("Serial port and board must be given for a source or a target that is serial, and for "
                             "no other")

    @property
    def built(self) -> BoardConfig | None:
        """Configuration of the board at the sites, or None if they use no board."""
        return None if self.board is None else BOARDS[self.board]

    def count(self, nodes: int | None) -> int:
        """Number of nodes in each of the two rings."""
        default = 4 if self.built is None else self.built.nodes
        if self.built is not None and nodes not in (None, default):
            raise ValueError(f"Nodes must be the {default} of {self.board}, not {nodes}")
        check_range("Nodes", nodes, 1, 16)
        return default if nodes is None else nodes


@dataclasses.dataclass(frozen=True)
class KeyOptions(Section):
    """Paths of the key files for a migration."""

    key: Path | None = option(None, help="File with the key for manifests.", shown_default="the user's key")
    owner_key: Path | None = option(None, help="File with the key of the model's owner.",
                                    shown_default="owner.key in the output folder")

    def keys(self, output: Path) -> Keys:
        """Load the keys for a migration, and generate missing ones; the output folder must exist."""
        manifest = user_key() if self.key is None else read_key(self.key)
        owner = None if self.owner_key is None else read_key(self.owner_key)
        prepare(output, files=_FILES[:2])
        return Keys(manifest, key_of(output / "owner.key") if owner is None else owner)


@command
def migrate_lab(
    *,
    nodes: Annotated[int | None, Option("Number of nodes in each ring.", ("--nodes", "-n"),
                                        shown_default="4, or the number of nodes of --board")] = None,
    job: JobOptions, target: TargetOptions, ends: SiteOptions, keys: KeyOptions,
    seed: Annotated[int, Option("Seed.", minimum=0, maximum=SEEDS)] = 0,
    output: Annotated[Path, Option("Folder for migrate.json, the ledger and checkpoints.",
                                   shown_default="build/migrate")] = BUILD / "migrate",
) -> None:
    """Move a running training job to another ring, and compare it with a run that is not moved."""
    count, config = ends.count(nodes), job.config(seed)
    target = dataclasses.replace(target, threads=thread_count(target.threads, count))
    job.node(target.interval)
    sites = _sites(job, target, ends, nodes=count, config=config, keys=keys.keys(output), output=output)
    results = Results(output, *_FILES)
    ledger = Ledger(output / "ledger.json")
    ledger.commit(Entry("source", 0))
    with results.progress() as progress:
        downtime, lines, same = _compare(sites, ledger, after=job.after, steps=job.steps, progress=progress)
    results.show(Table("cycles in which the job stood still", columns_of(
        "read:, load:, read_back:, start:,", Column("cycles", ",", "in all"), "bound:,.0f"), [downtime]))
    results.show(*(f"{site}: the words of a pass take {wire:,} cycles on the board's line, {count} nodes * "
                   f"{downtime.live_words:,} words * {WORD_BITS} * clock / baud"
                   for site, wire in lines.items() if wire),
                 f"{downtime.live_words:,} live words a node · moved after step {job.after} of {job.steps} · final "
                 f"weights, state and losses {'have' if same else 'have NOT'} the bits of the run that stayed")
    path = write_report(SCHEMA.report({
        **dataclasses.asdict(downtime), "cycles": downtime.cycles, "bound": downtime.bound, "nodes": count,
        "steps": job.steps, "after": job.after, "optimizer": job.optimizer, "weights": job.weights,
        "gradients": job.gradients, "transport": ends.transport, "source": ends.source_transport,
        "board": ends.board, "line": lines, "bit_exact": same}), output, _FILES[0])
    results.show(shown(path))
    end(not same)


def _sites(job: JobOptions, target: TargetOptions, ends: SiteOptions, *, nodes: int, config: TrainingConfig,
           keys: Keys, output: Path) -> list[Site]:
    """Create source, target, and a site for the unmoved job; raise ``ValueError`` if a board is too small."""
    data, built = digits(), ends.built
    length = Classifier(data, config.hidden).parameters.size
    need = [config.allocation(length)]
    if built is not None and fitted(built.node, need, nodes=nodes, planes=built.node.memories.planes) != built.node:
        raise ValueError(f"Model must have room in the memories of {ends.board}, not {length:,} parameters")
    node, slower = (fitted(job.node(interval), need, nodes=nodes) for interval in (1, target.interval))
    ring = functools.partial(_fabric, nodes=nodes)
    board = functools.partial(ring, board=built, device=ends.device)
    return [Site(name, output / name, fabric=fabric, workload=lambda: Classifier(data, config.hidden), config=config,
                 keys=keys)
            for name, fabric in (
                ("source", functools.partial(board, node, transport=TransportName(ends.source_transport))),
                ("target", functools.partial(board, slower, latency=target.latency, threads=target.threads,
                                             transport=TransportName(ends.transport))),
                ("stays", functools.partial(ring, node)))]


def _compare(sites: list[Site], ledger: Ledger, *, after: int, steps: int, progress: Progress) -> (
        tuple[Downtime, dict[str, int], bool]):
    """Run two equal jobs, of which one stays at its site and one moves to another. Returns the downtime, the cycles
    that one copy of the data takes on each site's serial line, and whether both runs end bit-identically."""
    source, target, stays = sites
    try:
        progress.stage("run that stays", steps)
        stays.begin()
        expected = _finish(stays, progress)
        progress.stage("run that moves", steps)
        source.begin()
        assert source.run is not None
        source.run.train(until=after)
        progress.say(f"moved after step {after}")
        downtime = migrate(source, target, ledger)
        lines = {site.name: site.pass_cycles(downtime.live_words) for site in (source, target)}
        return downtime, lines, _finish(target, progress) == expected
    finally:
        for site in sites:
            site.close()


@contextlib.contextmanager
def _fabric(config: NodeConfig, *, nodes: int, latency: int = LATENCY, threads: int = 1,
            transport: TransportName = TransportName.VERILATED, board: BoardConfig | None = None,
            device: str | None = None) -> Iterator[Fabric]:
    """Open a ring or a board; ``board`` provides the board's configuration, clock and baud rate."""
    options: dict[str, Any] = {"latency": latency, "threads": threads}
    line = None
    if transport is not TransportName.VERILATED:
        rates = RATES if board is None else {"clock": board.clock, "baud": board.baud}
        line, options = (rates["clock"], rates["baud"]), {"rates": rates}
        config = config if board is None else board.node
    if transport is TransportName.SERIAL:
        assert line is not None
        options = {"device": device, "frequency": line[0], "baud": line[1]}
    with open_session(config, nodes=nodes, transport=transport, **options) as session:
        # Loading clears a board's cycle counter, so its time is derived from the host's clock.
        clock = ((lambda: int(time.monotonic() * line[0])) if transport is TransportName.SERIAL and line
                 else (lambda: session.cycle))
        yield Fabric(session.ring, clock, line)


def _finish(site: Site, progress: Progress) -> tuple[list[bytes], list[float]]:
    """Finish a run. Return its losses, and its vectors as bits; nodes and golden model have the same bits."""
    run = site.run
    assert run is not None
    training = run.executor.training
    run.train(on_block=lambda: progress.advance(f"loss {training.steps[-1].loss:.4f}"))
    run.finish()
    state = run.state()
    reference = state["memory"]["reference"]
    arrays = [state["parameters"], reference["weights"], reference["master"], *reference["state"]]
    return [array.tobytes() for array in arrays], [step.loss for step in training.steps]
