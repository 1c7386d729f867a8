"""Prepare runs in which all workers step together: nodes, data and configurations, before any build."""

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from hdl.board import BOARDS, BoardConfig
from hdl.config import Configuration, NodeConfig, Peer, SingleRing, Weights, max_nodes_for
from hdl.registry import section
from host.driver.memory import fitted
from host.feature import feature
from host.models.digits import digits
from host.models.layers import widths
from host.models.text import topics
from host.models.transformer import TransformerConfig
from host.options import check_range
from host.run import slow_link
from host.run.sections import SLOTS, Moments, Update
from host.run.spec import RunSpec
from host.training.optimizers import LEARNING_RATES, SGD, OptimizerName, create
from host.training.record import FarMemory, TrainingConfig
from host.training.updates import check_run
from host.training.workloads import CharacterModel, Classifier, Workload, WorkloadName
from host.transports.session import LONGEST_REPLAYED, TransportName
from sim.golden.codecs import RAW, ZERO_VALUE
from sim.link_faults import RandomFaults

if TYPE_CHECKING:
    from host.features.grid.reconfiguration import ReconfigurationPlan

__all__ = ["Preparation", "prepare", "random_faults", "with_links"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """A prepared run: all that is needed to start it."""

    #: Description of the run, with all defaults.
    spec: RunSpec
    #: Board of the run; if it has none, a default board with rates that have no effect.
    board: BoardConfig
    node: Configuration
    task: Workload
    #: Training configurations of the successive runs.
    configs: list[TrainingConfig]
    #: Training configuration of the comparison run, the last of ``configs``; None without a comparison.
    plain: TrainingConfig | None = None
    #: Rings of a grid, and their reconfigurations.
    reconfiguration: "ReconfigurationPlan | None" = None
    slow: slow_link.SlowLink | None = None
    faults: RandomFaults | None = None

    @property
    def config(self) -> TrainingConfig:
        """Training configuration of the first run."""
        return self.configs[0]

    @property
    def nodes(self) -> int:
        """Number of nodes at the beginning of the run."""
        return int(self.spec.known("ring.nodes"))


def prepare(spec: RunSpec, say: Callable[[str], None] = lambda line: None) -> Preparation:
    """Check and prepare a run, described with all defaults; ``say`` is called with lines that explain choices. Raises
    ``ValueError`` if the run is impossible or an option has no effect on it."""
    board = _board(spec)
    schedule = spec.known_schedule
    reconfiguration: ReconfigurationPlan | None = None
    if spec.ring.topology is not None:
        reconfiguration = feature("grid").reconfiguration(spec.ring, spec.known("formats.gradients"))
    node = _node(spec, board, is_grid=reconfiguration is not None)
    slow = None if spec.ring.slow_link is None else slow_link.SlowLink.parse(spec.ring.slow_link)
    if slow is not None:
        slow.check(nodes=spec.known("ring.nodes"))
    config, task = _task(spec, schedule.configs(_config(spec))[0], node, say)
    plain = _compared(spec, config)
    compared = [] if plain is None else [plain]
    if spec.backend.board is None:
        node = _fitted(spec, node, task, [config, *compared], reconfiguration=reconfiguration)
    check_run(node, task, config,
              nodes=spec.known("ring.nodes") if reconfiguration is None else reconfiguration.most)
    if reconfiguration is not None:
        reconfiguration.check_run(node, task, config)
    return Preparation(spec=spec, board=board, node=node, task=task, configs=[*schedule.configs(config), *compared],
                       plain=plain, reconfiguration=reconfiguration, slow=slow, faults=random_faults(spec))


def _board(spec: RunSpec) -> BoardConfig:
    """Return the board of the run, or a board of default nodes with rates that have no effect."""
    if spec.backend.board is None:
        return dataclasses.replace(BOARDS["simulated"], node=NodeConfig(), nodes=Update.nodes)
    return BOARDS[spec.backend.board]


def _node(spec: RunSpec, board: BoardConfig, *, is_grid: bool) -> Configuration:
    """Return the configuration of the nodes, before their memories are enlarged to fit the run."""
    nodes = spec.known("ring.nodes")
    node = _with_formats(board.node, weights=spec.known("formats.weights"), gradients=spec.known("formats.gradients"))
    if spec.backend.board is None and not is_grid and not 1 <= nodes <= node.topology.max_nodes:
        node = node.replace(topology=SingleRing(max_nodes=max_nodes_for(nodes)))
    node.check_ring(nodes)
    fails = spec.faults.rate is not None
    if not node.has_ring and (fails or is_grid):
        raise ValueError("Nodes of 16-bit integers must be alone, without links that fail: leave --topology and "
                         "--faults out")
    node = node.replace(**{"link": section("Replay")(ingress=node.link.ingress)} if fails else {},
                        **{"topology": section("Grid")(max_nodes=node.topology.max_nodes)} if is_grid else {})
    if fails:
        check_range("Link latency", spec.ring.link_latency, 1, LONGEST_REPLAYED)
    return with_links(spec.ring.links, node, messages=spec.backend.transport is TransportName.MESSAGES)


def _with_formats(node: Configuration, *, weights: str, gradients: str) -> Configuration:
    """Set the codecs of new weights and gradients; raises ``ValueError`` if nodes do not support them."""
    if node.has_ring:
        return node.replace(weights=Weights(codec=weights), gradients=gradients)
    if (weights, gradients) != (RAW, ZERO_VALUE):
        raise ValueError(f"Nodes of 16-bit integers must have weights {RAW} and gradients {ZERO_VALUE}, not "
                         f"{weights} and {gradients}: leave --weights and --gradients out")
    return node


def with_links(links: str, node: Configuration, *, messages: bool = False) -> Configuration:
    """Configure the links of a node: with credits, or with slots, which can also carry ``messages``."""
    if links != SLOTS:
        return node
    slots = section("Slots")(ingress=15, messages=messages)
    return node.replace(link=slots, programs={}, role=Peer(interleaved=True))


def _config(spec: RunSpec) -> TrainingConfig:
    workload, optimizer, compute = spec.workload, spec.optimizer, spec.compute
    momentum = {name: value for name in ("momentum", "dampening") if (value := getattr(optimizer, name)) is not None}
    options: dict[str, Any] = {name: value for name, value in (
        ("epochs", workload.epochs), ("macs", compute.macs), ("tiling", compute.tiling),
        ("compute_format", compute.format),
        ("hidden", None if spec.model.hidden is None else widths(spec.model.hidden))) if value is not None}
    return TrainingConfig(
        **options, max_steps=workload.steps, interval=workload.interval, batch=spec.known("workload.batch"),
        seed=workload.seed, density=spec.formats.density,
        microbatches=workload.microbatches, compute=compute.on, far=_far_memory(spec),
        check=spec.output.check is not False and spec.backend.transport is not TransportName.GOLDEN,
        optimizer=create(spec.known("optimizer.rule"), learning_rate=optimizer.learning_rate, **momentum,
                         weight_decay=optimizer.weight_decay, clip=optimizer.clip),
        packed_state=optimizer.moments is Moments.BF16)


def _place(spec: RunSpec) -> str:
    """Return a text that names the options which select a run's board."""
    backend = spec.backend
    on_board = backend.transport in (TransportName.BOARD, TransportName.SERIAL)
    transport = f" by --transport {spec.known('backend.transport').value}" if on_board else ""
    return f"--board {backend.board}{transport}{' at --device' if backend.device else ''}"


def random_faults(spec: RunSpec) -> RandomFaults | None:
    """Return the link faults of a run that is described with all defaults, or None."""
    return None if spec.faults.rate is None else RandomFaults(rate=spec.faults.rate, seed=spec.known("faults.seed"))


def _far_memory(spec: RunSpec) -> FarMemory | None:
    """Return the far memory of the nodes, or None."""
    compute = spec.compute
    if compute.activations is None:
        return None
    try:
        rate = float(Fraction(spec.known("compute.far")))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"Rate of far memory must be a number or a fraction, such as 1/4, not "
                         f"{compute.far!r}") from None
    return FarMemory(activations=compute.activations, rate=rate, kind=spec.known("compute.memory"))


def _task(spec: RunSpec, config: TrainingConfig, node: Configuration, say: Callable[[str], None]) -> (
        tuple[TrainingConfig, Workload]):
    """Create the model and the data; the default perceptron omits a hidden layer that does not fit."""
    if spec.workload.name is WorkloadName.TEXT:
        return config, CharacterModel(topics(context=TransformerConfig.context))
    data = digits()
    task = Classifier(data, config.hidden, align=config.align, operands=config.compute_format)
    if spec.backend.board is not None:
        try:
            config.allocation(task.parameters.size).check(node, nodes=spec.known("ring.nodes"))
        except ValueError as error:
            if spec.model.hidden is not None:
                raise ValueError(f"{error} (--hidden on {_place(spec)})") from None
            say(f"no hidden layer: {error}")
            config = dataclasses.replace(config, hidden=())
            task = Classifier(data, (), align=config.align, operands=config.compute_format)
    return config, task


def _compared(spec: RunSpec, config: TrainingConfig) -> TrainingConfig | None:
    """Return the training configuration of the comparison run (dense or plain sgd), if one is requested."""
    if not spec.output.compare:
        return None
    if config.density is not None:
        return dataclasses.replace(config, density=None)
    if spec.workload.name is not WorkloadName.DIGITS:
        raise ValueError(f"Option --compare is for --workload digits, or a run with --density, not "
                         f"{spec.workload.name.value}: leave it out")
    if spec.optimizer.rule is OptimizerName.SGD:
        implied = "" if spec.backend.board is None else f", which --board {spec.backend.board} implies"
        raise ValueError(f"Option --compare is for a run with --density, or another --optimizer than sgd{implied}: "
                         f"leave it out")
    return dataclasses.replace(config, optimizer=SGD(learning_rate=LEARNING_RATES[OptimizerName.SGD]),
                               packed_state=False)


def _fitted(spec: RunSpec, node: Configuration, task: Workload, configs: list[TrainingConfig], *,
            reconfiguration: "ReconfigurationPlan | None") -> Configuration:
    """Return the configuration of nodes with the engines and enough memory for all runs."""
    nodes, config = spec.known("ring.nodes"), configs[0]
    node = fitted(node, [run.allocation(task.parameters.size) for run in configs],
                  nodes=nodes if reconfiguration is None else reconfiguration.fewest,
                  planes=spec.backend.state_planes)
    if spec.ring.slow_link is not None:
        node = slow_link.with_option(node, task.parameters.size, planes=config.optimizer.planes)
    for name in config.features:
        node = feature(name).training_node(node, task, config, nodes=nodes)
    return node
