"""Worker process of a sweep: runs builds, training, placement and cell counts."""

import importlib
import json
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hdl.config.forms import from_dict
from host.driver.diagnosis import RingError
from host.driver.errors import DeviceError
from host.driver.results import known
from host.labs.sweep.jobs import Job, JobKind, SweepError, store
from host.models.layer_shapes import layers_of
from host.models.text import Text, topics
from host.models.transformer import TransformerConfig
from host.signals import overlook
from host.training.batches import Batches
from host.training.optimizers import OptimizerName, create
from host.training.record import NODE, Training, TrainingConfig, TrainingError
from host.training.trainer import train
from host.training.workloads import TEXT_LEARNING_RATES, CharacterModel, Classifier, Masks, Workload, WorkloadName
from sim import json_files
from sim.verilated import toolchain

__all__ = ["GRACE", "QUIET", "attempt", "job_of", "order_of", "work"]

BATCH = 64  # number of sequences per step on text
GRACE = 3  # seconds that a worker's processes have to terminate before they are killed
QUIET = 0.5  # seconds between two messages that show that the worker is alive
_ERRORS = (ValueError, OSError, DeviceError, RingError, TrainingError, toolchain.ToolError)


class _Unsampled(CharacterModel):
    """Character model that generates no sample texts."""

    def sample(self, nodes: int, masks: Masks) -> dict[str, Any] | None:
        return None


def _build(parameters: dict[str, Any], announce: Callable[[str], None]) -> dict[str, Any]:
    from hdl.node import Node
    from sim.verilated.build import build_ring

    config = from_dict(parameters["configuration"])
    library = build_ring(Node(config), identity=f"Node({config})", announce=announce)
    return {"library": str(library.path), "stages": library.seconds}


def _run(parameters: dict[str, Any], announce: Callable[[str], None]) -> dict[str, Any]:
    from host.models.digits import digits
    from host.transports.session import open_session

    config = from_dict(parameters["configuration"])
    task: Workload
    if parameters["workload"] == WorkloadName.TEXT.value:
        text = topics(context=TransformerConfig.context)
        task = _Unsampled(Text(text.train, text.test[::parameters["sample"]]))
        training = TrainingConfig(
            max_steps=parameters["steps"], interval=parameters["interval"], batch=BATCH,
            optimizer=create(OptimizerName.ADAM, learning_rate=TEXT_LEARNING_RATES[OptimizerName.ADAM]))
    else:
        training = TrainingConfig(epochs=parameters["epochs"], **parameters.get("training", {}))
        task = Classifier(digits(), training.hidden, align=training.align, operands=training.compute_format)
    total, said = training.steps(task.examples), 0.0

    def show(so_far: Training) -> None:
        nonlocal said
        if time.monotonic() > said + QUIET:
            said = time.monotonic()
            announce(f"step {len(so_far.steps)} of {total}")

    with open_session(config, nodes=parameters["nodes"], host_port=False, announce=announce) as session:
        outcome = train(session.ring, task, training, on_step=show)
        return {**_figures(outcome), "parameters": task.parameters.size, "cycles": session.elapsed.simulated,
                "port_cycles": session.elapsed.port_cycles,
                "simulation_seconds": session.seconds, "configuration_hash": config.hash,
                "bigram_loss": task.bigram_loss if isinstance(task, CharacterModel) else None,
                **(_engine_figures(outcome, task, training) if isinstance(task, Classifier)
                   and training.compute == NODE else {})}


def _figures(training: Training) -> dict[str, Any]:
    """Average the measurements of a run over its steps."""
    steps = training.steps
    words = sum(step.words_sent for step in steps) / len(steps)
    gradients = sum(step.scatter_words for step in steps) / len(steps)
    cycles = sum(known(step.cycles) for step in steps)
    return {"steps": len(steps), "loss": training.losses[-1], "measure": training.measures[-1],
            "bit_exact": training.bit_exact, "words": words, "words_gradients": gradients,
            "words_weights": words - gradients, "cycles_per_step": cycles / len(steps),
            "bound_ratio": cycles / sum(step.bound for step in steps)}


def _engine_figures(outcome: Training, task: Classifier, training: TrainingConfig) -> dict[str, Any]:
    """Average the figures of a run on computing nodes over its steps, taking cycles from the slowest node.
    Multiply-adds are counted on the node with the most examples in each batch."""
    batches, count = Batches(task.examples, training), len(outcome.steps)
    shares = [-(-len(batches.take().examples) // outcome.nodes) for _ in range(count)]
    each = sum(layer.multiplications(backward=backward) for layer in layers_of(task.widths)
               for backward in (False, True))
    return {"multiply_adds": each * sum(shares) / count,
            "cycles_products": sum(known(step.gemm_cycles) for step in outcome.steps) / count,
            "cycles_functions": sum(known(step.vector_cycles) for step in outcome.steps) / count}


def _synthesise(parameters: dict[str, Any], announce: Callable[[str], None]) -> dict[str, Any]:
    """Place a hardware unit or, without seeds for placement, only count its cells."""
    synth = importlib.import_module("boards.synth")
    work: Callable[..., dict[str, Any]] = synth.measure if "seeds" in parameters else synth.count
    unit, options = parameters["unit"], {name: value for name, value in parameters.items() if name != "unit"}
    try:
        return work(unit, **options, progress=lambda text: announce(text.partition(": ")[2]))
    except synth.SynthesisError as error:
        raise toolchain.ToolError(str(error)) from None


_WORK = {JobKind.BUILD: _build, JobKind.RUN: _run, JobKind.PLACE: _synthesise, JobKind.COUNT: _synthesise}


def _end_group() -> None:
    """Terminate this process and all its child processes, with a short time for cleanup."""
    os.killpg(0, signal.SIGINT)
    for _ in range(int(GRACE / QUIET)):
        time.sleep(QUIET)
        os.killpg(0, signal.SIGTERM)  # also terminates tools started in the meantime
    os.killpg(0, signal.SIGKILL)


def _core_seconds() -> float:
    """Return the processor time in seconds used by this process and the tools that it has run."""
    return sum(os.times()[:4])


def order_of(job: Job) -> dict[str, Any]:
    """Encode a job as JSON values, to send it to another process."""
    return {"kind": job.kind.value, "name": job.name, "parameters": job.parameters, "digest": job.digest}


def job_of(order: dict[str, Any]) -> Job:
    """Decode a job that :func:`order_of` has encoded."""
    return Job(kind=JobKind(order["kind"]), name=order["name"], parameters=order["parameters"])


def attempt(order: dict[str, Any], folder: Path, announce: Callable[[str], None] = lambda stage: None) -> str | None:
    """Run a job and write its result to a folder. If the job fails, return its error."""
    job, begun = job_of(order), _core_seconds()
    try:
        if job.digest != order["digest"]:
            raise SweepError("Sources have changed since the sweep began; start it again")
        store(folder, job, _WORK[job.kind](job.parameters, announce), _core_seconds() - begun)
    except (*_ERRORS, SweepError) as error:
        return str(error)
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return None


def work(folder: str) -> None:
    """Run the jobs read from standard input, one per line, and write their results to a folder.

    Progress is written to standard output, line by line. When standard input ends, because the sweep has ended or was
    killed, this process terminates together with all its child processes; it must be the leader of a process group.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # sends the output of tools and libraries to standard error
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def listen() -> None:
        with os.fdopen(os.dup(0)) as lines:
            for line in lines:
                orders.put(json_files.parse_product(line))
        _end_group()

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=answers)

    def handle(order: dict[str, Any]) -> None:
        error = attempt(order, Path(folder), lambda stage: say(stage=stage))
        say(**({"done": True} if error is None else {"error": error}))

    overlook(signal.SIGTERM)
    threading.Thread(target=listen, daemon=True).start()
    try:
        while True:
            handle(orders.get())
    except KeyboardInterrupt:
        os.killpg(0, signal.SIGKILL)
