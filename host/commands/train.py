"""The command `gradring train`."""

import contextlib
import dataclasses
import enum
from pathlib import Path
from typing import Annotated

import typer

from hdl.board import BOARDS
from hdl.choices import choice_error
from hdl.compression.registry import GRADIENT_CODECS, WEIGHT_CODECS
from hdl.config import NodeConfig, SingleRing, Weights, max_nodes_for
from hdl.config.forms import as_dict
from host.commands import far_options, job_options, late_options, slot_links
from host.commands import slow_link as slow_links
from host.commands.console import (
    ArithmeticOption,
    HostPort,
    Link,
    Progress,
    Threads,
    TransportOption,
    given_options,
    make_console,
    shown,
)
from host.commands.nodes import with_formats, with_ring
from host.commands.process_options import ProcessesOption, check_alone, other_processes, serves, threads_of
from host.commands.run_files import FILES, advice, identity_of, space
from host.commands.run_options import ComputeFormat, compared, refuse_unused, show_moments_note
from host.commands.topology_options import (
    DisableOption,
    EnableOption,
    ShapeOption,
    TopologyOption,
    check_past,
    check_stages,
    course_of,
    lines,
)
from host.driver.devices import TIMEOUT
from host.driver.diagnosis import RingError
from host.driver.errors import DeviceError
from host.driver.memory import fitted
from host.models.digits import digits
from host.models.text import topics
from host.models.transformer import TransformerConfig
from host.models.widths import widths
from host.options import COUNT, check_range, command
from host.output import claim, prepare, write_json
from host.reports import chakra as chakra_files
from host.reports import events as event_files
from host.reports import measured as schedules
from host.reports import measured_trace, report, training_page
from host.signals import GRACE, Interrupted, handle_signals
from host.training import checkpoint as checkpoints
from host.training import weight_files as weights_files
from host.training.engine import engine_node
from host.training.experiment import Experiment, Keeper
from host.training.optimizers import LEARNING_RATES, OptimizerName, create
from host.training.record import NODE, Training, TrainingConfig
from host.training.run_check import check_run
from host.training.schedule import ALL, OVERLAPS, overlaps, patience_of, programmed
from host.training.workloads import TEXT_LEARNING_RATES, CharacterModel, Classifier, Workload, WorkloadName
from host.transports.session import LATENCY, LONGEST_REPLAYED, MAX_LATENCY, TransportName, open_session
from sim.link_faults import RandomFaults
from sim.verilated import toolchain
from sim.verilated.native import Arithmetic

__all__ = ["train_command"]

class Moments(enum.Enum):
    """Formats in which nodes store the optimizer's state."""

    FP32 = "fp32"
    BF16 = "bf16"


#: Of the character model, unless others are asked for.
TEXT_STEPS, TEXT_BATCH, TEXT_INTERVAL = 200, 64, 20


def _rates(rates: dict[OptimizerName, float]) -> str:
    return ", ".join(f"{name.value} {rate}" for name, rate in rates.items())


@command
def train_command(
    context: typer.Context,
    workload: Annotated[WorkloadName, typer.Option(
        help="A perceptron that classifies digits, or a causal transformer that predicts characters of text.")
    ] = WorkloadName.DIGITS,
    nodes: Annotated[int | None, typer.Option(
        help="Nodes in the ring, 1 to 255. [default: 4, on a board as many as it has]", show_default=False)] = None,
    epochs: Annotated[int | None, typer.Option(
        help=f"Passes over the training set. [default: digits {TrainingConfig.epochs}, on a simulated board 1, text "
             f"as --steps says]", show_default=False)] = None,
    steps: Annotated[int | None, typer.Option(
        help=f"Steps, in place of epochs. [default: text {TEXT_STEPS}]", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Seed of initial weights and order of examples.")] = TrainingConfig.seed,
    threads: Threads = None,
    processes: ProcessesOption = None,
    optimizer: Annotated[OptimizerName | None, typer.Option(
        help="Update rule. [default: digits momentum, or sgd where nodes have no state; text adam]",
        show_default=False)] = None,
    learning_rate: Annotated[float | None, typer.Option(
        help=f"At the first step; it falls to zero along a straight line. [default: digits {_rates(LEARNING_RATES)}; "
             f"text {_rates(TEXT_LEARNING_RATES)}]", show_default=False)] = None,
    momentum: Annotated[float, typer.Option(help="Momentum of momentum and nesterov.")] = 0.9,
    dampening: Annotated[float, typer.Option(help="Dampening of momentum.")] = 0.0,
    weight_decay: Annotated[float | None, typer.Option(
        help="Decoupled with adamw, else added to the gradient. [default: adamw 0.01, others 0]",
        show_default=False)] = None,
    clip: Annotated[float | None, typer.Option(
        help="Largest magnitude of an element of the mean gradient. [default: none]", show_default=False)] = None,
    moments: Annotated[Moments, typer.Option(
        help="Format of momentum and moments; second moments of bf16 do not decay with adam's b2.")] = Moments.FP32,
    weights: Annotated[str, typer.Option(
        help=f"Codec of new weights, whose fp32 masters their owners keep: {', '.join(WEIGHT_CODECS)}.")
    ] = Weights.codec,
    gradients: Annotated[str, typer.Option(
        help=f"Codec of gradients and their sums; its loss is added to the next ones: "
             f"{', '.join(GRADIENT_CODECS)}.")
    ] = NodeConfig.gradients,
    density: Annotated[float | None, typer.Option(
        help="Part of the elements that nodes send, on average over the hops of scatter-reduce: the largest ones; "
             "the others wait. [default: all that are not zero]", show_default=False)] = None,
    compare: Annotated[bool | None, typer.Option(
        "--compare/--no-compare",
        help="Train as well, on the same ring, seed and batches: with a density, without it; else by plain sgd. "
             "[default: with a density; digits with adam and adamw]", show_default=False)] = None,
    batch: Annotated[int | None, typer.Option(
        help=f"Most examples in a step. [default: digits {TrainingConfig.batch}, text {TEXT_BATCH}]",
        show_default=False)] = None,
    hidden: Annotated[str | None, typer.Option(
        help="Widths of the perceptron's hidden layers, as in 64,32, or in 32x9 for nine of 32, or none; simulated "
             "nodes are made to have room. [default: 64, or none where a board has no room for that]",
        show_default=False)] = None,
    interval: Annotated[int | None, typer.Option(
        help=f"Measure after so many steps. [default: digits every epoch, text {TEXT_INTERVAL}]",
        show_default=False)] = None,
    overlap: Annotated[str | None, typer.Option(
        help="Have nodes compute and communicate by a program: none, strict, layers, chunks:n for n layers at a "
             "time, search for the best n, or all, one after the other. Computing is modelled, but with --compute "
             "node. [default: the host computes]", show_default=False)] = None,
    compute: Annotated[str, typer.Option(
        help="Who differentiates: host, or node for nodes that do, by a program unless there is a density.")
    ] = TrainingConfig.compute,
    compute_format: ComputeFormat = TrainingConfig.compute_format,
    macs: Annotated[int, typer.Option(
        help="Multiply-adds per cycle of each node's engine, or of the one that --overlap counts on.")
    ] = TrainingConfig.macs,
    tiling: Annotated[str, typer.Option(
        help="Factors of matrix products on nodes that compute: default, or searched on a simulated node first.")
    ] = TrainingConfig.tiling,
    transport: TransportOption = TransportName.VERILATED,
    device: Annotated[str | None, typer.Option(
        help="Serial port of a board, as /dev/ttyUSB0; stands for --transport serial.", show_default=False)] = None,
    board: Annotated[str | None, typer.Option(
        help=f"Board that is behind the port or simulated: {', '.join(BOARDS)}. "
             f"[default: simulated, if it is to be a board; else nodes that gradring info shows]",
        show_default=False)] = None,
    baud: Annotated[int | None, typer.Option(
        help="Bits per second of the serial port. [default: as the board was built for]", show_default=False)] = None,
    reconnect: Annotated[float, typer.Option(
        help="Seconds for which a serial port that is lost is waited for, before training ends.")] = 30.0,
    arithmetic: ArithmeticOption = Arithmetic.GATEWARE,
    host_port: HostPort = False,
    state_planes: Annotated[int | None, typer.Option(
        help="State planes of simulated nodes, 0 to 2. [default: those of the optimizer]",
        show_default=False)] = None,
    link_latency: Link = LATENCY,
    faults: Annotated[float | None, typer.Option(
        help="Links that repeat damaged words, and damage: the part of all cycles in which a wire of a link changes, "
             "at random. [default: links without either]", metavar="RATE", show_default=False)] = None,
    fault_seed: Annotated[int, typer.Option(help="Seed of --faults.")] = RandomFaults.seed,
    slow_link: slow_links.SlowLinkOption = None,
    links: slot_links.LinksOption = slot_links.CREDITS,
    jobs: job_options.JobsOption = None,
    activations: far_options.Activations = None,
    far: far_options.Far = None,
    memory: far_options.Memory = None,
    topology: TopologyOption = None,
    disable: DisableOption = None,
    enable: EnableOption = None,
    shape: ShapeOption = None,
    straggler: late_options.Straggler = None,
    quorum: late_options.Quorum = None,
    late: late_options.LateOption = None,
    factor: late_options.Factor = None,
    deadline: late_options.Deadline = None,
    skew: late_options.Skew = None,
    cycles: late_options.Cycles = None,
    switch_out: late_options.SwitchOut = False,
    check: Annotated[bool, typer.Option(help="Compare all nodes with the golden model after every step.")] = True,
    checkpoint: Annotated[int | None, typer.Option(
        help="Write checkpoint.tar after so many steps each, 0 for never. [default: whenever the model is measured, "
             "digits every epoch]", show_default=False)] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Go on from checkpoint.tar in the output folder, if there is one.")] = False,
    tensorboard: Annotated[Path | None, typer.Option(
        help="Folder of events for TensorBoard, with a folder in it for each run: loss, accuracy, cycles, words and "
             "density of every step. Needs gradring[tensorboard].", show_default=False)] = None,
    chakra: Annotated[Path | None, typer.Option(
        help="Beginning of the names of execution traces for ASTRA-sim, of the last step of a run by a program on "
             "digits. Needs gradring[chakra].", show_default=False)] = None,
    output: Annotated[Path, typer.Option(
        help="Folder of report.json, report.png, report.html, weights.npz and checkpoint.tar. [default: build/sim]",
        show_default=False)] = toolchain.BUILD / "sim",
) -> None:
    """Train on a ring, and compare every node with the golden model after every step."""
    if serves():
        return
    text = workload is WorkloadName.TEXT
    if tensorboard is not None:
        event_files.needed()
    if chakra is not None:
        chakra_files.needed()
    given = given_options(context)
    for name, special in (("straggler", late_options), ("jobs", job_options)):
        if special.asked(context.params, given):
            check_alone(f"A run with --{name}")
            special.train(context.params)
            return
    if device is not None and not given("transport"):
        transport = TransportName.SERIAL
    if board is None and transport in (TransportName.BOARD, TransportName.SERIAL):
        board = "simulated"
    if board is not None and board not in BOARDS:
        raise ValueError(choice_error("Board", BOARDS, board))
    # Where there is no board, its rates are not looked at.
    built = dataclasses.replace(BOARDS["simulated"], node=NodeConfig(), nodes=4) if board is None else BOARDS[board]
    course = course_of(topology, disable=disable, enable=enable, shape=shape, nodes=nodes)
    if nodes is None:
        nodes = built.nodes if course is None else course.nodes
    damage = None if faults is None else RandomFaults(rate=faults, seed=fault_seed)
    node = with_formats(built.node, weights=weights, gradients=gradients)
    if board is None and course is None and not 1 <= nodes <= node.topology.max_nodes:
        node = node.replace(topology=SingleRing(max_nodes=max_nodes_for(nodes)))
    if transport is TransportName.BOARD and not text and epochs is None and steps is None:
        epochs = 1
    if optimizer is None:
        optimizer = (OptimizerName.ADAM if text else
                     OptimizerName.MOMENTUM if node.memories.planes else OptimizerName.SGD)
    host_port = host_port or transport is not TransportName.VERILATED
    if compute == NODE and not text and overlap is None and density is None and board is None:
        overlap = OVERLAPS[0]
    refuse_unused(given, workload=workload, optimizer=optimizer, transport=transport, device=device,
                  board=board, overlap=overlap, compute=compute, faults=faults, topology=topology)
    node.check_ring(nodes)
    slow = slow_links.check(slow_link, nodes=nodes, node=node, transport=transport, board=board, overlap=overlap,
                            topology=topology, faults=faults, far=far)
    if damage is not None or course is not None:
        node = with_ring(node, replay=damage is not None, grid=course is not None)
    node = slot_links.with_links(links, node, transport=transport, board=board, topology=topology,
                                 slow_link=slow_link)
    check_range("Link latency", link_latency, 1, MAX_LATENCY if damage is None else LONGEST_REPLAYED)
    check_range("Steps between checkpoints", checkpoint, 0, COUNT)
    check_range("Baud rate", baud, 1, COUNT)
    check_range("Seconds to reconnect", reconnect, 0, COUNT)
    rates = TEXT_LEARNING_RATES if text else LEARNING_RATES
    if epochs is not None and steps is not None:
        raise ValueError(f"Epochs or steps must be given, not both: {epochs!r} and {steps!r}")
    if text and epochs is None and steps is None:
        steps = TEXT_STEPS
    if text and interval is None:
        interval = TEXT_INTERVAL
    config = TrainingConfig(
        epochs=TrainingConfig.epochs if epochs is None else epochs, max_steps=steps, interval=interval,
        batch=(TEXT_BATCH if text else TrainingConfig.batch) if batch is None else batch,
        hidden=TrainingConfig.hidden if hidden is None else widths(hidden), seed=seed, check=check, density=density,
        overlap=OVERLAPS[0] if overlap == ALL else overlap, compute=compute, macs=macs, tiling=tiling,
        compute_format=compute_format, far=far_options.far_memory(context.params, given),
        optimizer=create(optimizer, learning_rate=rates[optimizer] if learning_rate is None else learning_rate,
                         momentum=momentum, dampening=dampening, weight_decay=weight_decay, clip=clip),
        packed_state=moments is Moments.BF16)
    console = make_console()
    others = other_processes(processes, nodes=nodes)
    count = threads_of(threads, nodes, others)
    with Progress(console) as progress:
        progress.stage("data")
        show_moments_note(config, progress.say)
        task: Workload
        if text:
            task = CharacterModel(topics(context=TransformerConfig.context))
        else:
            data = digits()
            task = Classifier(data, config.hidden, align=config.align, operands=config.compute_format)
            if hidden is None and board is not None:
                try:
                    config.allocation(task.parameters.size).check(node, nodes=nodes)
                except ValueError as error:
                    progress.say(f"no hidden layer: {error}")
                    config = dataclasses.replace(config, hidden=())
                    task = Classifier(data, (), align=config.align, operands=config.compute_format)
        plain = None if overlap is not None else compared(config, optimizer, text=text, asked=compare)
        if board is None:
            node = fitted(node, [one.allocation(task.parameters.size) for one in (config, plain) if one],
                          nodes=nodes if course is None else course.fewest, planes=state_planes)
            if slow is not None:
                node = slow_links.with_option(node, task.parameters.size, planes=config.optimizer.planes)
            if compute == NODE:
                node = engine_node(node, task, config, nodes=nodes)
            if overlap is not None:
                node = programmed(node, task.parameters.size, len(config.hidden) + 1, stale=config.overlaps,
                                  nodes=nodes)
        check_run(node, task, config, nodes=nodes)  # before anything is built
        if course is not None:
            check_stages(course, node, task, config)
            lines(course, progress.say)
        configs = [config] if plain is None else [config, plain]
        if overlap == ALL:
            configs = [dataclasses.replace(config, overlap=name) for name in overlaps(config)]
        identity = identity_of(configs, node, workload=workload.value, nodes=nodes, transport=transport.value,
                             link_latency=link_latency, host_port=host_port, overlap=overlap,
                             faults=None if damage is None else dataclasses.asdict(damage),
                             topology=topology, shape=None if shape is None else shape.value,
                             **({} if slow_link is None else {"slow_link": slow_link}))
        keeper = Keeper(output / checkpoints.NAME, identity, steps=checkpoint)
        keeper.check_key()
        if chakra is not None:
            prepare(chakra.parent)
        prepare(output, files=[name for name in FILES if "/" not in name], space=space(task, config, nodes))
        events = None if tensorboard is None else event_files.Events(
            tensorboard, list(map(event_files.run_name, configs)),
            measure="loss/held_out" if text else "accuracy/test", grid=course is not None, replay=node.link.replay)
        kept = keeper.load() if resume else None
        if kept is not None:
            check_past(course, kept, shown(keeper.path))
        claim(output, files=FILES, keep=() if kept is None else (checkpoints.NAME,))
        if resume:
            progress.say(f"{shown(keeper.path)}: " + ("there is none, so training begins at its first step"
                                                       if kept is None else "training goes on from there"))
        with open_session(node, nodes=nodes, transport=transport, threads=count, arithmetic=arithmetic,
                          host_port=host_port, latency=link_latency, faults=damage,
                          slow_link=None if slow is None else slow.as_tuple(), processes=others,
                          far_rate=None if config.far is None else config.far.rate,
                          timeout=TIMEOUT + patience_of(task, config, nodes), device=device,
                          baud=built.baud if baud is None else baud, frequency=built.clock,
                          grid=None if course is None else (course.rows, course.columns),
                          persistence=reconnect, say=progress.say, announce=progress.stage) as session, \
                contextlib.nullcontext() if events is None else events:
            total = config.steps(task.examples)
            dealing = None if slow is None else slow_links.deal(
                session.ring, task.parameters.size, planes=config.optimizer.planes, latency=link_latency,
                say=progress.say)
            experiment = Experiment(session, task, configs, keeper=keeper, content=kept, course=course)

            def stage(number: int) -> None:
                if overlap == ALL:
                    progress.say(f"overlap: {configs[number].overlap}")
                elif number:
                    progress.say(f"{configs[number].optimizer.name if density is None else 'dense'}, for comparison")
                progress.stage("compare" if number and plain else "train", total, task)
                if events is not None:
                    events.begin(number, experiment.trainings)

            def step(training: Training) -> None:
                progress.step(training)
                if events is not None:
                    events.step(training)

            stopped = 0
            with handle_signals(grace=GRACE) as signals:
                try:
                    experiment.run(signals, on_run=stage, on_step=step, on_repeat=progress.say)
                except Interrupted as interrupted:
                    stopped = interrupted.signal
                except (DeviceError, RingError):
                    progress.say(advice(experiment, keeper))
                    raise
            run_seconds = dict(zip(("run", "comparison"), experiment.seconds, strict=False))
            if overlap == ALL:
                run_seconds = {"run": sum(experiment.seconds)}
            simulation = report.Simulation(
                transport=transport.value, threads=count, arithmetic=arithmetic.value, link_latency=link_latency,
                configuration=as_dict(node), configuration_hash=node.hash,
                host_port=host_port, elapsed=experiment.elapsed, seconds=session.build_seconds | run_seconds,
                simulation_seconds=experiment.simulation_seconds, faults=damage,
                course=course, dealing=dealing)
    bigram_loss = task.bigram_loss if isinstance(task, CharacterModel) else None
    begun = [(asked, one) for asked, one in zip(configs, experiment.trainings, strict=False) if one.steps]
    scheduled = begun if overlap is not None else []
    if stopped:
        if begun:
            result = report.build_report(config, experiment.trainings[0], simulation, bigram_loss=bigram_loss,
                                         interrupted=True, schedules=scheduled)
            write_json(output / "report.json", result)
        console.print(f"interrupted; {advice(experiment, keeper)}", soft_wrap=True)
        raise typer.Exit(128 + stopped)
    comparison = None if plain is None else (plain, experiment.trainings[1])
    result = report.build_report(config, experiment.trainings[0], simulation, comparison, bigram_loss=bigram_loss,
                                 schedules=scheduled)
    with Progress(console) as progress:
        progress.stage("report")
        written, picture = report.write_report(result, output)
        timelines = schedules.write(result, output, nodes=nodes) if overlap is not None else []
        if chakra is not None and isinstance(task, Classifier):
            timelines += measured_trace.write(result, task.layers, chakra, nodes=nodes)
        page = training_page.write(result, output, timelines=timelines)
    trained_weights = output / "weights.npz"
    assert experiment.parameters is not None
    weights_files.save(weights_files.TrainedWeights(workload=workload, hidden=config.hidden, seed=seed,
                                                    parameters=task.compact(experiment.parameters)), trained_weights)
    console.print(report.table(result))
    console.print(report.verdict(result), soft_wrap=True)
    for line in schedules.lines(result):
        console.print(line, soft_wrap=True)
    if result["sample"] is not None:
        console.print(f"It writes: {result['sample']['written']}", soft_wrap=True)
    console.print(" · ".join(map(shown, (written, picture, page, trained_weights, *timelines))), soft_wrap=True)
