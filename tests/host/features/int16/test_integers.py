# amaranth: UnusedElaboratable=no
"""Test 16-bit integer nodes, both golden models and gateware: driver, trainer, and command line."""

import contextlib
import dataclasses
import functools
import json

import numpy as np
import pytest

from hdl.board import BOARDS
from hdl.control.protocol import EventStatus, Operation, Space
from hdl.features.int16.engine import update_cycles
from host.driver.command import Command
from host.driver.masking import Mask, MaskJob, plan
from host.driver.memory import Buffer, Buffers, aligned
from host.driver.optimizer_settings import FixedSettings
from host.run import steps
from host.training import weight_files as weights
from host.training.optimizers import LEARNING_RATES, SGD, OptimizerName
from host.training.record import DivergenceError, TrainingConfig, TrainingError
from host.training.trainer import train
from host.training.updates import check_run
from host.training.workloads import Classifier, WorkloadName
from host.transports.session import TransportName, open_session
from sim.golden import masking
from sim.golden.features.int16 import int16_node as model
from tests.host.features.int16.integers import configuration, golden_ring
from tests.refusals import refuses

PLAIN = SGD(learning_rate=LEARNING_RATES[OptimizerName.SGD])
CONFIG = TrainingConfig(hidden=(), optimizer=PLAIN)
ROOM = {"gradient": 8192, "weight": 16384}
SHORT = TrainingConfig(hidden=(), optimizer=PLAIN, epochs=1, batch=25)


def integers(generator, count):
    return generator.integers(-32768, 32768, count).astype(np.int16)


class TestTraining:
    """Tests of training on golden nodes."""

    @pytest.mark.parametrize("seed", range(3))
    def test_accuracy(self, data, seed):
        """The accuracy of the trained weights reaches its limit; docs/training/figures.md lists more seeds and the
        accuracy in binary32."""
        training = train(golden_ring(), data, dataclasses.replace(CONFIG, seed=seed))
        assert training.bit_exact is True
        assert training.measures[-1] >= 0.94
        assert len(training.steps) == 168

    def test_hidden_layer(self, data):
        training = train(golden_ring(**ROOM), data, TrainingConfig(optimizer=PLAIN))
        assert training.bit_exact is True
        assert training.parameters == 4810
        assert training.measures[-1] >= 0.955

    def test_density(self, data):
        training = train(golden_ring(), data, dataclasses.replace(CONFIG, density=0.1))
        assert training.bit_exact is True
        assert training.measures[-1] >= 0.93
        assert 0.08 <= np.mean([step.density for step in training.steps]) <= 0.101
        assert training.elements_masked == sum(
            round(650 * (1 - density)) for step in training.steps for density in step.density)
        assert all(step.threshold > 0 for step in training.steps)
        assert {step.sparsify_cycles for step in training.steps} == {None}  # golden nodes do not model these cycles

    def test_figures_of_a_step(self, few):
        training = train(golden_ring(), few, SHORT)
        for step in training.steps:
            nonzero = round(650 * step.density[0])
            assert 21 + nonzero / 2 <= step.words_sent <= 21 + (nonzero + 21) / 2
            assert step.words_sent == step.scatter_words
            assert (step.words_dense, step.cycles, step.bound) == (325, None, 0)

    def test_no_check(self, few):
        checked, unchecked = (train(golden_ring(), few, dataclasses.replace(SHORT, check=check))
                              for check in (True, False))
        assert (checked.bit_exact, unchecked.bit_exact) == (True, None)
        assert checked.losses == unchecked.losses

    def test_weights_are_compared(self, few):
        def fault(ring):
            if ring.steps == 2:
                ring.golden.weights[0, 77] ^= 4

        message = r"^Step 2: 1 of 650 weights of node 0 differ from the golden model, first number 77, which is 0x"
        with pytest.raises(DivergenceError, match=message):
            train(golden_ring(fault=fault), few, SHORT)

    def test_words_are_compared(self, few):
        def fault(ring):
            ring.golden.counters["COMPRESSED_WORDS"] += ring.steps == 2

        with pytest.raises(DivergenceError, match=r"^Step 2: nodes have sent (\d+) words, and must have sent \d+$"):
            train(golden_ring(fault=fault), few, SHORT)

    def test_errors_are_compared(self, few):
        def fault(ring):
            if ring.steps == 2:
                ring.golden.weights[0, 672 + 5] ^= 1

        config = dataclasses.replace(SHORT, density=0.3)
        assert train(golden_ring(), few, config).bit_exact is True
        message = r"^Step 2: 1 of 650 errors of node 0 differ from the golden model, first number 5, which is 0x"
        with pytest.raises(DivergenceError, match=message):
            train(golden_ring(fault=fault), few, config)

    def test_gradients_that_are_not_finite(self, few):
        data = dataclasses.replace(few, train_x=np.where(few.train_x > 0.5, np.nan, few.train_x))
        refuses("Step 1: Gradients of int16 nodes must be finite; training has diverged, try a smaller learning rate",
                train, golden_ring(), data, SHORT, error=TrainingError)

    def test_largest_batch(self):
        for examples, batch in ((1437, 128), (50, 25), (50, 49), (7, 100), (100, 1)):
            sizes = [len(part) for part in np.array_split(np.arange(examples), -(-examples // batch))]
            assert TrainingConfig(batch=batch).largest(examples) == max(sizes)


class TestWhatIsRefused:
    @pytest.mark.parametrize(("options", "config", "message"), [
        ({}, TrainingConfig(hidden=()), r"^Optimizer of int16 nodes must be sgd, not momentum$"),
        ({}, TrainingConfig(optimizer=PLAIN),
         r"^Vector must have at most the 1,024 elements of a node's memories, not 4,810: take a smaller "
         r"model, or nodes with larger memories$"),
        ({"weight": 1024}, dataclasses.replace(CONFIG, density=0.1),
         r"^Weights and the errors of what was not sent must take at most the 1,024 elements of a node's weight "
         r"memory, not 1,322: "),
        ({"sparsify": False}, dataclasses.replace(CONFIG, density=0.1),
         r"^Nodes must have error feedback for a density, to keep the elements that they do not send$"),
    ])
    def test_runs(self, data, options, config, message):
        with pytest.raises(ValueError, match=message):
            check_run(configuration(**options), Classifier(data, config.hidden), config, nodes=1)

    def test_text(self, data):
        class Task(Classifier):
            name = WorkloadName.TEXT

        with pytest.raises(ValueError, match=r"^Workload of int16 nodes must be digits, not text$"):
            check_run(configuration(), Task(data, ()), CONFIG, nodes=1)

    def test_size(self, data):
        refuses("Ring must have 1 node, not 2", check_run, configuration(), Classifier(data, ()), CONFIG, nodes=2)

    def test_what_can_be_done(self, data):
        check_run(configuration(), Classifier(data, ()), dataclasses.replace(CONFIG, density=0.1), nodes=1)

    def test_floats(self):
        ring = golden_ring()
        with pytest.raises(TypeError, match=r"^Elements of int16 nodes must be int16, not float32$"):
            ring.memory.write_weights(np.zeros(3, np.float32))

    @pytest.mark.parametrize("threshold", [0.5, -1, 65536, float("inf"), float("nan")])
    def test_threshold(self, threshold):
        refuses(f"Threshold of int16 nodes must be an integer between 0 and 65535, not {threshold}",
                golden_ring().local.sparsify, 10, threshold=threshold)

    @pytest.mark.parametrize("alternative", [-10000.5, 32768, -32769])
    def test_alternative(self, alternative):
        refuses(f"Alternative of int16 nodes must be an integer between -32768 and 32767, not {alternative}",
                golden_ring().local.mask, [[]], alternative=alternative)


def random_jobs(generator, count):
    jobs = []
    for _ in range(count):
        kinds = {name: bool(generator.random() < 0.4) for name in (
            "triangle", "triangle_inverse", "padding", "rectangle", "rectangle_inverse", "band")}
        numbers = {name: int(generator.integers(9)) for name in (
            "length_rows", "length_columns", "first_row", "end_row", "first_column", "end_column", "width")}
        shape = tuple(generator.integers(1, 9, 3).tolist())
        jobs.append(MaskJob(matrices=integers(generator, shape), mask=Mask(
            **kinds, **numbers, diagonal=int(generator.integers(-8, 8)))))
    return jobs


def assert_masked(jobs, outcome, alternative):
    replaced = 0
    for job, result in zip(jobs, outcome.results[0], strict=True):
        kept = masking.kept(masking.Job(rows=job.rows, columns=job.columns, count=job.count,
                                        mask=masking.Mask(**vars(job.mask))))
        assert result.dtype == np.int16
        np.testing.assert_array_equal(result, np.where(kept, job.matrices, alternative))
        replaced += int((~kept).sum())
    assert outcome.replaced == [replaced]


class TestMasks:
    @pytest.mark.parametrize("count", [0, 1, 5, 20])
    def test_on_the_golden_model(self, count):
        generator = np.random.default_rng(count)
        jobs = random_jobs(generator, count)
        ring = golden_ring()
        written = integers(generator, 650)
        ring.memory.write_weights(written)
        outcome = ring.local.mask([jobs], alternative=-9, behind=650)
        assert_masked(jobs, outcome, -9)
        np.testing.assert_array_equal(ring.memory.read_weights(650)[0], written)
        assert outcome.commands == (0, 1, 1, 2)[(0, 1, 5, 20).index(count)]

    def test_a_job_that_is_split(self):
        matrices = integers(np.random.default_rng(1), (7, 40, 20))
        job = MaskJob(matrices=matrices, mask=Mask(band=True, width=3))
        outcome = golden_ring().local.mask([[job]], alternative=0)
        assert_masked([job], outcome, 0)
        assert outcome.commands == 7

    def test_a_wrong_job(self):
        """The node rejects a job that the driver would never write."""
        device, = golden_ring().devices
        [region] = plan([MaskJob(matrices=np.ones((1, 2, 2), np.int16), mask=Mask())], lanes=1, elements=99,
                        words=99, element="int16")
        region.words[2] = 3
        device.submit_write_memory(Space.WEIGHT, 0, region.words)
        device.write_register("MASK_ALTERNATIVE", 0)
        device.submit_push(Command(operation=Operation.MASK, length=4))
        event = device.submit_pop_event(0).result()
        assert (event.status, event.detail) == (EventStatus.BAD_MASK, 0)

    @pytest.mark.parametrize(("dtype", "mask", "element", "message"), [
        (np.float32, Mask(), "int16", "Matrices must be int16 for int16 nodes, not float32"),
        (np.int16, Mask(), "fp32", "Matrices must be float32 for fp32 nodes, not int16"),
        (np.int16, Mask(external=True), "int16",
         "Mask must not be external for int16 nodes, which have only those that are generated"),
    ])
    def test_jobs_that_nodes_do_not_have(self, dtype, mask, element, message):
        external = np.ones((1, 2, 2), np.bool_) if mask.external else None
        job = MaskJob(matrices=np.zeros((1, 2, 2), dtype), mask=mask, external=external)
        refuses(message, plan, [job], lanes=1, elements=100, words=100, element=element)

    def test_no_room(self):
        message = r"^Job and external mask of a matrix of 2 x 2 must take at most the 31 words .*, not 32: take"
        with pytest.raises(ValueError, match=message):
            plan([MaskJob(matrices=np.zeros((1, 2, 2), np.int16), mask=Mask())], lanes=1, elements=100, words=31,
                 element="int16")


# --- tests of gateware

NODE = BOARDS["icebreaker"].node


@pytest.fixture(scope="module")
def verilated():
    """Ring of one node in the iCEBreaker's configuration, simulated in this process."""
    with open_session(NODE, nodes=1, timeout=4000) as session:
        yield session.ring


class TestGateware:
    def test_training(self, verilated, few):
        training = train(verilated, few, SHORT)
        assert training.bit_exact is True
        assert [step.words_sent for step in training.steps] == [
            step.words_sent for step in train(golden_ring(), few, SHORT).steps]
        assert [step.cycles for step in training.steps] == [
            update_cycles(650, round(650 * step.density[0])) for step in training.steps]

    def test_hidden_layer_and_density(self, verilated, few):
        config = TrainingConfig(hidden=(64,), optimizer=PLAIN, epochs=2, batch=25, density=0.1)
        training = train(verilated, few, config)
        assert training.bit_exact is True
        assert len(training.steps) == 4
        assert training.elements_masked > 0

    def test_registers_and_memories(self, verilated):
        device, = verilated.devices
        for value in (-1, 5, 0x1FFFF, -(1 << 31)):
            device.write_register("LEARNING_RATE", value)
            assert device.read_register("LEARNING_RATE") == value
        for value in (1 << 31, 0.5):
            with pytest.raises((TypeError, ValueError), match=r"^Value of register LEARNING_RATE must be "):
                device.write_register("LEARNING_RATE", value)
        device.write_memory(Space.WEIGHT, 3, np.array([0x1234_8001, 0xFFFF_0007], np.uint32))
        assert device.read_memory(Space.WEIGHT, 3, 2).tolist() == [0xFFFF_8001, 7]
        values = integers(np.random.default_rng(2), 100)
        verilated.memory.write_gradients([values])
        np.testing.assert_array_equal(verilated.memory.read_gradients(100)[0], values)

    def test_sparsify(self, verilated):
        generator = np.random.default_rng(3)
        gradients, errors = integers(generator, 333), np.zeros(333, np.int64)
        verilated.memory.clear_errors(333)
        for threshold in (20000, 0, 32768):
            verilated.memory.write_gradients([gradients])
            expected = model.sparsify(gradients, errors, threshold)
            outcome = verilated.local.sparsify(333, threshold=threshold)
            assert outcome.dropped == [expected.dropped]
            np.testing.assert_array_equal(verilated.memory.read_gradients(333)[0], expected.gradients)
            np.testing.assert_array_equal(verilated.memory.read_errors(333)[0], expected.errors)
            errors = expected.errors

    @pytest.mark.parametrize("cut", [32, 160, 1000, 2000])
    def test_any_cut(self, verilated, cut):
        """Weights do not depend on how a vector is divided into commands, even if they saturate."""
        length, generator = 2000, np.random.default_rng(2000)
        gradients, written = integers(generator, length), integers(generator, length)
        index = np.arange(length)
        index = index // cut * aligned(cut) + index % cut  # every part begins at a multiple of 32
        parts = np.zeros((2, index[-1] + 1), np.int16)
        parts[:, index] = gradients, written
        verilated.memory.write_gradients(parts[:1])
        verilated.memory.write_weights(parts[1])
        verilated.settings.write(FixedSettings(gradient_scale=65536, learning_rate=65536))
        for base in range(0, parts.shape[1], aligned(cut)):
            size = min(cut, parts.shape[1] - base)
            verilated.collectives.fused_update(Buffers(
                gradients=Buffer("gradients", base, size), weights=Buffer("weights", base, size)))
        expected = model.update(gradients, written, gradient_scale=65536, learning_rate=65536).weights
        assert np.isin([-32768, 32767], expected).all()
        result = verilated.memory.read_weights(parts.shape[1])[0]
        np.testing.assert_array_equal(result[index], expected)

    @pytest.mark.parametrize(("limit", "same"), [(4000, True), (32768, False)])
    def test_order(self, verilated, limit, same):
        """Several updates give the same weights in any order, unless weights saturate."""
        generator = np.random.default_rng(6)
        written, *gradients = generator.integers(-limit, limit, (5, 100)).astype(np.int16)
        settings, results = {"gradient_scale": 65536, "learning_rate": 32768}, []
        verilated.settings.write(FixedSettings(**settings))
        for order in (*(np.roll(range(4), shift) for shift in range(4)), [2, 0, 3, 1], [1, 0, 3, 2]):
            expected = written
            verilated.memory.write_weights(written)
            for number in order:
                verilated.memory.write_gradients([gradients[number]])
                verilated.collectives.fused_update(100)
                expected = model.update(gradients[number], expected, **settings).weights
            results.append(verilated.memory.read_weights(100)[0])
            np.testing.assert_array_equal(results[-1], expected)
        assert all((result == results[0]).all() for result in results) is same

    @pytest.mark.parametrize("count", [1, 12])
    def test_masks(self, verilated, count):
        jobs = random_jobs(np.random.default_rng(count), count)
        written = integers(np.random.default_rng(0), 650)
        verilated.memory.write_weights(written)
        outcome = verilated.local.mask([jobs], alternative=-77, behind=650)
        assert_masked(jobs, outcome, -77)
        np.testing.assert_array_equal(verilated.memory.read_weights(650)[0], written)

    def test_a_wrong_mask(self, verilated):
        """The node rejects a list with an empty second job, which the driver would never write."""
        device, = verilated.devices
        values = np.arange(1, 9, dtype=np.uint32)
        job = MaskJob(matrices=np.ones((1, 2, 2), np.int16), mask=Mask(triangle=True))
        [region] = plan([job], lanes=1, elements=99, words=99, element="int16")
        device.write_memory(Space.GRADIENT, 0, values)
        device.write_memory(Space.WEIGHT, 0, region.words)
        device.write_register("MASK_ALTERNATIVE", -1)
        device.push(Command(operation=Operation.MASK, length=8))
        event = device.pop_event(4000)
        assert (event.status, event.detail) == (EventStatus.BAD_MASK, 1)
        assert device.read_memory(Space.GRADIENT, 0, 8).tolist() == [1, 0xFFFF_FFFF, *range(3, 9)]

    @pytest.mark.parametrize("operation", [Operation.ALL_REDUCE, Operation.INFER])
    def test_operations_that_it_does_not_have(self, verilated, operation):
        device, = verilated.devices
        device.push(Command(operation=operation, length=32))
        event = device.pop_event(4000)
        assert (event.status, event.detail) == (EventStatus.UNKNOWN_OPERATION, operation)

    def test_pysim(self):
        generator = np.random.default_rng(4)
        gradients, written = integers(generator, 70), integers(generator, 70)
        with open_session(NODE, nodes=1, transport=TransportName.PYSIM, timeout=4000) as session:
            ring = session.ring
            ring.memory.write_weights(written)
            ring.memory.write_gradients([gradients])
            ring.settings.write(FixedSettings(gradient_scale=65536, learning_rate=-12345))
            ring.collectives.fused_update(70)
            update = model.update(gradients, written, gradient_scale=65536, learning_rate=-12345)
            np.testing.assert_array_equal(ring.memory.read_weights(70)[0], update.weights)
            assert ring.counters.read()[0]["COMPRESSED_WORDS"] == update.words

    def test_masks_on_a_simulated_board(self):
        """The example in docs/training/guide.md works on a board connected by a pseudo-terminal."""
        scores = integers(np.random.default_rng(5), (2, 16, 16))
        causal = Mask(triangle=True, padding=True, length_rows=16, length_columns=11)
        with open_session(NODE, nodes=1, transport=TransportName.BOARD) as session:
            outcome = session.ring.local.mask([[MaskJob(matrices=scores, mask=causal)]], alternative=-32768)
        row, column = np.indices((16, 16))
        np.testing.assert_array_equal(
            outcome.results[0][0], np.where((column <= row) & (column < 11), scores, -32768))


# --- tests of the command line


@pytest.fixture
def run(program):
    """Run a training; return the exit code, standard output and standard error."""
    return functools.partial(program, "train")


class TestCommandLine:
    def test_simulated_board(self, succeed, tmp_path):
        """A small job runs over the serial link of a simulated iCEBreaker, connected by a pseudo-terminal."""
        out = succeed("--transport", "board", "--board", "icebreaker", "--hidden", "none", "--batch", 360,
                      "--density", 0.2, "--no-compare", "--output", tmp_path)
        assert "Weights of the node identical to the golden model, bit for bit, after each of 4 steps." in out
        assert "words per compressed gradient" in out
        result = json.loads((tmp_path / "report.json").read_text())
        assert result["bit_exact"] is True
        assert (result["nodes"], result["steps"], result["parameters"]) == (1, 4, 650)
        assert (result["training"]["optimizer"], result["configuration"]["kind"]) == ("sgd", "int16")
        assert 0 < result["words_sent"] < result["words_dense"] == 4 * 325
        assert result["cycles_sparsify"] > 0
        assert (tmp_path / "report.png").stat().st_size > 10_000
        trained = weights.load(tmp_path / "weights.npz").parameters
        np.testing.assert_array_equal(trained * 4096, np.rint(trained * 4096))

    def test_nodes_of_a_board_in_this_process(self, succeed, tmp_path):
        out = succeed("--board", "icebreaker", "--batch", 750, "--epochs", 1, "--output", tmp_path)
        assert "no hidden layer" not in out
        assert "words per compressed gradient" in out
        assert "link" not in out
        result = json.loads((tmp_path / "report.json").read_text())
        assert (result["bit_exact"], result["parameters"], result["transport"]) == (True, 4810, "verilated")
        assert result["levels"] == ["run to run", "any processor", "any cut"]

    @pytest.mark.parametrize(("arguments", "message"), [
        (["--optimizer", "momentum"], "Optimizer of int16 nodes must be sgd, not momentum"),
        (["--optimizer", "adam"], "Option --optimizer adam is for a run without --board simulated or icebreaker, not "
                                  "icebreaker (at most one word of state per weight): leave it out"),
        (["--weight-decay", 0.1], "Optimizer of int16 nodes must have no weight decay and no clipping, not 0.1 and "
                                  "None"),
        (["--weights", "mx9"], "Nodes of 16-bit integers must have weights raw and gradients zero_value, not mx9 and "
                               "zero_value: leave --weights and --gradients out"),
        (["--gradients", "mx9"], "Nodes of 16-bit integers must have weights raw and gradients zero_value, not raw "
                                 "and mx9: leave --weights and --gradients out"),
        (["--nodes", 2], "Ring must have 1 node, not 2"),
        (["--hidden", "300"], "Vector must have at most the 16,384 elements of a node's memories, not 22,510: take a "
         "smaller model, or nodes with larger memories (--hidden on --board icebreaker)"),
        (["--hidden", "128", "--density", 0.1],
         "Weights and the errors of what was not sent must take at most the 16,384 elements of a node's weight "
         "memory, not 19,242: take a model of at most 8,192 parameters, nodes with more weight memory, or no "
         "density, which sends everything (--hidden on --board icebreaker)"),
    ])
    def test_refused(self, run, tmp_path, arguments, message):
        code, _, err = run("--board", "icebreaker", "--output", tmp_path, *arguments)
        assert (code, err) == (1, f"error: {message}\n")

    def test_what_is_taken_where_nothing_is_said(self, run, monkeypatch, tmp_path):
        """Hidden layers that do not fit are omitted by default, and nodes without state use SGD."""

        trained = []

        @contextlib.contextmanager
        def session(config, **options):
            trained.append(config)
            yield type("Session", (), {"ring": None, "build_seconds": {}})

        def stop(session, task, configs, **options):
            trained.append((task.parameters.size, configs[0].hidden, configs[0].optimizer.name))
            raise TrainingError("enough")

        monkeypatch.setattr(steps, "open_session", session)
        monkeypatch.setattr(steps, "Experiment", stop)
        code, out, _ = run("--board", "ulx3s-25f", "--output", tmp_path)
        assert code == 1
        assert ("no hidden layer: Vector must have at most the 2,048 elements of a node's memories, not 4,810"
                ) in " ".join(out.split())
        assert trained == [BOARDS["ulx3s-25f"].node, (650, (), "momentum")]
        trained.clear()
        assert run("--board", "icebreaker", "--output", tmp_path)[0] == 1
        assert trained == [NODE, (4810, (64,), "sgd")]
