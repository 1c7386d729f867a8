# amaranth: UnusedElaboratable=no
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from host.output import OutputError
from host.signals import Interrupted, Signals, handle_signals
from host.training import checkpoint
from host.training.experiment import Checkpointer, Experiment
from host.training.optimizers import SGD, OptimizerName, create
from host.training.record import TrainingConfig
from host.training.trainer import make_trainer, train
from host.training.workloads import CharacterModel, Classifier
from host.transports.session import Elapsed
from tests.host.features.int16.integers import golden_ring
from tests.host.golden import SMALL, TEXT, GoldenRing
from tests.host.rings import CONFIGS, library
from tests.refusals import refuses

CONTENT = {"a": np.arange(5, dtype=np.uint32), "b": [None, 1.1, {"c": np.zeros((2, 0), np.float32)}], "d": "ä",
           "infinite": float("inf"), "large": 1 << 120}
IDENTITY = {"nodes": 4, "training": {"seed": 1, "optimizer": {"momentum": 0.9}}}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / checkpoint.NAME
    checkpoint.save(path, IDENTITY, CONTENT)
    return path


class TestFile:
    def test_there_and_back(self, path):
        content = checkpoint.load(path, IDENTITY)
        assert content["a"].tolist() == [0, 1, 2, 3, 4]
        assert content["a"].dtype == np.uint32
        assert content["b"][2]["c"].shape == (2, 0)
        assert content["b"][:2] == [None, 1.1]
        assert {name: content[name] for name in ("d", "infinite", "large")} == {
            name: CONTENT[name] for name in ("d", "infinite", "large")}

    def test_damaged(self, path):
        whole = path.read_bytes()
        for index in range(0, len(whole), 97):
            path.write_bytes(whole[:index] + bytes([whole[index] ^ 1 << index % 8]) + whole[index + 1:])
            with pytest.raises(checkpoint.CheckpointError, match=rf"^{path} must be a whole checkpoint of this user: "
                                                                 r".*; leave out --resume to begin anew$"):
                checkpoint.load(path, IDENTITY)

    def test_of_another_user(self, path, tmp_path, monkeypatch):
        monkeypatch.setenv("GRADRING_KEY", str(tmp_path / "other.key"))
        with pytest.raises(checkpoint.CheckpointError, match=r"BAD_MAC: manifest must have the HMAC of this key"):
            checkpoint.load(path, IDENTITY)
        assert (tmp_path / "other.key").stat().st_mode & 0o777 == 0o600

    def test_no_key(self, path, tmp_path, monkeypatch):
        monkeypatch.setenv("GRADRING_KEY", str(tmp_path))
        with pytest.raises(OutputError, match=rf"^{tmp_path} must be readable, or free to be made, as the key of "
                                              r"checkpoints: .*; set GRADRING_KEY to another file$"):
            checkpoint.load(path, IDENTITY)
        (tmp_path / "short").write_bytes(b"short")
        monkeypatch.setenv("GRADRING_KEY", str(tmp_path / "short"))
        with pytest.raises(ValueError, match=r"short must have a key of 32 to 4,096 bytes$"):
            checkpoint.save(path, IDENTITY, CONTENT)

    def test_of_a_version_before(self, tmp_path):
        """A file from before format 1 is not ignored, but rejected with the reason."""
        np.savez(tmp_path / "checkpoint.npz", header=np.array("{}"))
        with pytest.raises(checkpoint.CheckpointError, match=r"checkpoint\.npz must be .* BAD_VERSION: file must be "
                                                             r"of format 1, not an npz archive, in which versions "):
            checkpoint.load(tmp_path / checkpoint.NAME, IDENTITY)

    @pytest.mark.parametrize(("identity", "difference"), [
        ({**IDENTITY, "nodes": 3}, "nodes 4 (here 3)"),
        ({"nodes": 4, "training": {"seed": 1, "optimizer": {"momentum": 0.5}}},
         "training.optimizer.momentum 0.9 (here 0.5)"),
        ({**IDENTITY, "comparison": {"seed": 1}}, "comparison None (here {'seed': 1})"),
        ({**IDENTITY, "nodes": "x" * 1000}, f"nodes 4 (here '{'x' * 29} … {'x' * 29}')"),
        ({**IDENTITY, **{f"option_{number}": 1 for number in range(9)}},
         ", ".join(f"option_{number} None (here 1)" for number in range(6)) + " and 3 others"),
    ])
    def test_another_run(self, path, identity, difference):
        with pytest.raises(checkpoint.CheckpointError) as caught:
            checkpoint.load(path, identity)
        assert str(caught.value) == (f"{path} must be of a run with the same options and versions, not with "
                                     f"{difference}; take those, or leave out --resume to begin anew")

    @pytest.mark.parametrize("length", [1000, 100_000])
    def test_long_options(self, tmp_path, length):
        """A checkpoint is recognized as belonging to the same run even if values of options are long."""
        identity = {**IDENTITY, "disable": ",".join(["card1@4"] * (length // 8)), "hidden": [8] * (length // 2)}
        checkpoint.save(tmp_path / checkpoint.NAME, identity, {"number": 1})
        assert checkpoint.load(tmp_path / checkpoint.NAME, identity) == {"number": 1}

    def test_no_file(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            checkpoint.load(tmp_path / "none", IDENTITY)

    def test_versions(self):
        versions = checkpoint.versions()
        assert set(versions) == {"gradring", "python", "numpy"}
        assert versions["numpy"] == np.__version__


CONFIG = TrainingConfig(epochs=3, batch=20, hidden=())
RUNS = {
    "momentum": ({}, CONFIG),
    "adam, bfloat16": ({}, dataclasses.replace(CONFIG, optimizer=create(OptimizerName.ADAM), packed_state=True)),
    "density": ({}, dataclasses.replace(CONFIG, density=0.2)),
    "mx9": ({"weight_codec": "mx9", "gradient_codec": "mx9"}, CONFIG),
    "mx9, density, not compared": ({"gradient_codec": "mx9"}, dataclasses.replace(CONFIG, density=0.2, check=False)),
    "codebook": ({"weight_codec": "table32"}, dataclasses.replace(CONFIG, refresh=2)),
    "text": ({}, TEXT),
    "int16": (None, dataclasses.replace(CONFIG, optimizer=SGD(learning_rate=1.2), density=0.3)),
}


@pytest.mark.parametrize("name", RUNS)
def test_goes_on_after_every_step(few, lines, tmp_path, name):
    """A run resumed on another ring, with a new model, reports the same figures as an uninterrupted run."""
    options, config = RUNS[name]

    def begin():
        ring = golden_ring() if options is None else GoldenRing(2, **options)
        return ring, CharacterModel(lines, SMALL, chunk=5) if name == "text" else Classifier(few, config.hidden)

    ring, workload = begin()
    expected = train(ring, workload, config)
    last = workload.parameters.tobytes()
    ring, workload = begin()
    run = make_trainer(ring, workload, config)
    run.begin()
    for number in range(1, len(expected.steps) + 1):
        run.advance()
        checkpoint.save(tmp_path / "file", {}, run.state())
        ring, workload = begin()
        run = make_trainer(ring, workload, config)
        run.resume(checkpoint.load(tmp_path / "file", {}))
        assert len(run.executor.training.steps) == number
    assert run.complete
    run.finish()
    assert run.executor.training == expected
    assert workload.parameters.tobytes() == last
    assert expected.bit_exact is (True if config.check else None)


class Session:
    def __init__(self):
        self.ring, self.golden = GoldenRing(2), True
        self.seconds = 0.25
        self.faults = 0
        self.grid = None

    @property
    def elapsed(self):
        return Elapsed(100 * self.ring.steps, 50 * self.ring.steps, 40 * self.ring.steps)


def interrupt(experiment, number):
    """Run the experiment, and send a signal in the given step. Steps are counted over all runs."""
    signals, done = Signals(), []

    def step(training):
        if not done or done[-1] is not training.steps[-1]:
            done.append(training.steps[-1])
            if len(done) == number:
                signals.take(signal.SIGTERM, None)

    experiment.run(signals, on_step=step)


class TestExperiment:
    CONFIGS = [dataclasses.replace(CONFIG, density=0.2), CONFIG]

    def start(self, few, folder, *, steps=None, resume=False):
        checkpointer = Checkpointer(folder / checkpoint.NAME, {"nodes": 2}, steps=steps)
        return Experiment(Session(), Classifier(few, ()), self.CONFIGS, checkpointer=checkpointer,
                          content=checkpointer.load() if resume else None)

    @pytest.mark.parametrize("steps", [None, 1, 2, 100])
    def test_signals_in_any_step_of_both_runs(self, few, tmp_path, steps):
        whole = self.start(few, tmp_path / "whole", steps=steps)
        whole.run(Signals())
        for number in (1, 5, 9, 10, 17):
            experiment = self.start(few, tmp_path, steps=steps)
            with pytest.raises(Interrupted):
                interrupt(experiment, number)
            assert experiment._checkpointer.kept == number
            assert sum(len(training.steps) for training in experiment.trainings) == number
            again = self.start(few, tmp_path, steps=steps, resume=True)
            again.run(Signals())
            assert again.trainings == whole.trainings
            assert again.elapsed == whole.elapsed
            assert again.parameters.tobytes() == whole.parameters.tobytes()

    def test_no_checkpoints(self, few, tmp_path):
        experiment, signals = self.start(few, tmp_path, steps=0), Signals()
        with pytest.raises(Interrupted):
            experiment.run(signals, on_step=lambda training: signals.take(signal.SIGINT, None))
        assert experiment._checkpointer.kept == 0
        assert list(tmp_path.iterdir()) == []
        refuses("Steps between checkpoints must be zero or more, not -1", self.start, few, tmp_path, steps=-1)

    @pytest.mark.parametrize(("steps", "expected"), [(None, [3, 6, 9]), (4, [4, 8, 9]), (100, [9])])
    def test_when(self, few, tmp_path, monkeypatch, steps, expected):
        """Checkpoints are written at every interval and at the end of each run."""
        kept = []
        monkeypatch.setattr(checkpoint, "save", lambda path, identity, content: kept.append(
            (content["run"], content["state"]["batches"]["number"])))
        self.start(few, tmp_path, steps=steps).run(Signals())
        assert kept == [(run, number) for run in (0, 1) for number in expected]

    def test_second_signal(self):
        before = signal.getsignal(signal.SIGTERM)

        def ask():
            with handle_signals() as signals:
                os.kill(os.getpid(), signal.SIGTERM)
                assert signals.asked == signal.SIGTERM
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(Interrupted, match="SIGINT") as caught:
            ask()
        assert caught.value.signal == signal.SIGINT
        assert signal.getsignal(signal.SIGTERM) is before

    def test_in_a_finalizer(self):
        """If a finalizer swallows the exception of the first signal, the second signal still ends the step."""
        class Signalled:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGTERM)

        def ask():
            with handle_signals():
                Signalled()
                time.sleep(60)

        with pytest.raises(Interrupted, match="SIGTERM"):
            ask()

    def test_grace(self):
        """A step is interrupted if it runs longer than the grace period, but not if it ends within this period."""
        def ask(seconds, *, grace, ends=False):
            with handle_signals(grace=grace) as signals:
                os.kill(os.getpid(), signal.SIGTERM)
                if ends:
                    signals.settle()
                time.sleep(seconds)
            return signals.asked

        begun = time.monotonic()
        with pytest.raises(Interrupted, match="SIGTERM") as caught:
            ask(60, grace=0.05)
        assert time.monotonic() - begun < 30
        assert caught.value.signal == signal.SIGTERM
        assert ask(0, grace=2) == signal.SIGTERM
        assert ask(2.2, grace=2, ends=True) == signal.SIGTERM  # step completes


def test_killed(tmp_path):
    """A run of 24 steps on the Verilated ring is killed by SIGKILL at random times, 20 times in total, and each time
    a new process resumes it. A process that only writes checkpoints is killed as well.
    """
    kills, seed = 20, 16
    library(CONFIGS["mx9"])  # built first, so that processes need not wait
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-m", "tests.host.killed", tmp_path, str(kills), str(seed)], cwd=root,
                          capture_output=True, text=True, timeout=900, check=False)
    print(f"seed {seed}", done.stdout, done.stderr)
    assert done.returncode == 0
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["kills"] == kills
    assert result["same"]
    assert len({*result["stood"]}) > 4
    assert len({*result["written"]}) > 4
