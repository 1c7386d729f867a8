import dataclasses
import json

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from host import schema
from host.features.grid.reconfiguration import ReconfigurationPlan, Request
from host.reports import report, summary, training_picture
from host.training.optimizers import SGD, Adam
from host.training.record import Change, Step, Training, TrainingConfig
from host.transports.session import Elapsed
from sim import json_files
from sim.link_faults import RandomFaults

FIELDS = {"accuracy", "loss_per_epoch", "bit_exact", "nodes", "steps", "cycles", "cycles_fused_update",
          "bound_cycles", "words_sent", "words_dense", "density_per_hop", "simulated_cycles_per_second",
          "stage_seconds", "cycles_simulated", "host_port"}

#: Configuration of nodes with replay links.
REPLAY = {"kind": "node", "lanes": 4, "link": {"kind": "replay"}}


def write(result, folder):
    return schema.write_report(result, folder), report.draw_report(result, folder)


def simulation(**changes):
    return report.Simulation(**{
        "transport": "verilated", "threads": 2, "arithmetic": "gateware", "link_latency": 16,
        "configuration": {"kind": "node", "lanes": 4},
        "configuration_hash": 0x1234, "host_port": False, "elapsed": Elapsed(400_000, 600_000, 500_000),
        "seconds": {"Verilog": 1.0, "Verilate": 2.0, "compile": 3.0, "run": 5.0}, "simulation_seconds": 4.0,
        **changes})


def training(nodes=4, steps=6, **changes):
    generator = np.random.default_rng(1)
    rows = [
        Step(number=number + 1, epoch=number // 2 + 1, loss=2 / (number + 1), cycles=1100, bound=1000,
             scatter_cycles=600, scatter_bound=500, words_sent=900 * (nodes - 1) + number,
             words_dense=1000 * (nodes - 1),
             nodes=nodes,
             density=(0.5 + 0.05 * np.arange(nodes - 1) + generator.uniform(0, 0.1)).tolist())
        for number in range(steps)
    ]
    return Training(**{"nodes": nodes, "parameters": 4810, "steps": rows, "losses": [1.5, 0.5, 0.25],
                       "measures": [0.8, 0.9, 0.97], "measured": [2, 4, 6], "bit_exact": True, **changes})


def build(**changes):
    return report.build_report(TrainingConfig(), training(**changes), simulation())


def build_comparison(accuracies=(0.5, 0.75, 0.875), **changes):
    """Report of a run with Adam, compared with a run with SGD."""
    other = training(measures=list(accuracies), losses=[2.0, 1.0, 0.75])
    return report.build_report(TrainingConfig(optimizer=Adam(), packed_state=True), training(**changes), simulation(),
                               (TrainingConfig(optimizer=SGD(learning_rate=1.2)), other))


def build_sparse(**changes):
    """Report of a run with sparse gradients, compared with a dense run."""
    sparse = training()
    for number, step in enumerate(sparse.steps):
        sparse.steps[number] = dataclasses.replace(
            step, density=[0.08, 0.1, 0.11], sparsify_cycles=300, threshold=0.5 + number, words_sent=1500, cycles=800,
            scatter_words=400)
    sparse = dataclasses.replace(sparse, measures=[0.7, 0.9, 0.96], elements_masked=1234, **changes)
    config = TrainingConfig(density=0.1)
    return report.build_report(config, sparse, simulation(), (TrainingConfig(), training()))


SAMPLE = {"text": "a b_c", "attention": np.tril(np.full((2, 8, 8), 0.2)).tolist(), "written": "the cat"}


def build_text(measures=(2.8, 2.6, 2.25), sample=SAMPLE, **changes):
    """Report of a run that trains a character model."""
    model = training(measures=list(measures), sample=sample, mask_cycles=999, elements_through=5000,
                     elements_masked=1200, **changes)
    model.steps = [dataclasses.replace(step, mask_cycles=150, elements_through=800, elements_masked=200)
                   for step in model.steps]
    return report.build_report(TrainingConfig(max_steps=6, interval=2, optimizer=Adam()), model, simulation(),
                               bigram_loss=2.5)


def build_faulty(**changes):
    """Report of a run on links with replay, with faults in every other step."""
    faulty = training(**changes)
    faulty.steps = [dataclasses.replace(step, faults_injected=3, checks_failed=2, link_restarts=2, words_repeated=150)
                    if step.number % 2 else step for step in faulty.steps]
    return report.build_report(TrainingConfig(), faulty, simulation(
        configuration=REPLAY, faults=RandomFaults(rate=1e-4, seed=5)))


def change(step, requests, nodes, left=(), joined=(), shape="flat"):
    return Change(step=step, requests=requests, shape=shape, nodes=list(nodes), left=list(left), joined=list(joined),
                  heirs=[], moved=1234, dropped=0, switch_cycles=1500 + step, carry_cycles=9000)


def build_changing(config=TrainingConfig(), **changes):  # noqa: B008
    """Report of a run on faulty links with replay. The number of nodes changes from 4 to 1, then to 3, and back to
    4."""
    trained = training(**changes)
    trained.changes = [change(2, ["disable card1", "disable node1"], [0], left=[1, 2, 3]),
                       change(3, ["enable card1"], [0, 2, 3], joined=[2, 3]),
                       change(5, ["enable node1"], range(4), joined=[1], shape="grid")]
    trained.steps = [dataclasses.replace(step, nodes=nodes, density=step.density[:nodes - 1], link_restarts=1,
                                         words_repeated=10, faults_injected=2, checks_failed=1,
                                         threshold=None if config.density is None else 0.5)
                     for step, nodes in zip(trained.steps, (4, 4, 1, 3, 3, 4), strict=True)]
    reconfiguration = ReconfigurationPlan(2, 2, [
        Request.parse("card1@2"), Request.parse("node1@2"), Request.parse("card1@3", enable=True),
                           Request.parse("node1@5", enable=True)])
    return report.build_report(config, trained, simulation(
        configuration=REPLAY, faults=RandomFaults(rate=1e-4, seed=5), reconfiguration=reconfiguration))


class TestBuild:
    def test_changes(self):
        assert build()["topology"] is None
        assert build()["changes"] == []
        result = build_changing()
        assert [sorted(stage["nodes"]) for stage in result["topology"]["stages"]] == [[0, 1, 2, 3], [0], [0, 2, 3],
                                                                              [0, 1, 2, 3]]
        assert {name: result["topology"][name] for name in ("rows", "columns", "shape")} == {
            "rows": 2, "columns": 2, "shape": None}
        assert result["changes"][1] == {
            "step": 3, "requests": ["enable card1"], "shape": "flat", "nodes": [0, 2, 3], "left": [],
            "joined": [2, 3], "heirs": [], "moved": 1234, "dropped": 0, "switch_cycles": 1503,
            "handover_cycles": 9000}
        densities = [step["density"] for step in result["per_step"]]
        assert result["density_per_hop"] == pytest.approx(
            [np.mean([hops[hop] for hops in densities if len(hops) > hop]) for hop in range(3)])
        assert result["density"] == pytest.approx(np.mean([np.mean(hops) for hops in densities if hops]))
        rows = dict(summary.summary(result))
        assert rows["nodes · optimizer · batch"] == "4 → 1 → 3 → 4 · momentum · 128"
        assert rows["topology · rings"] == "2 x 2 · 4 nodes, grid"
        assert rows["after step 2"] == "disable card1, disable node1 · 1 node, flat"
        assert rows["after step 5"] == "enable node1 · 4 nodes, grid"
        assert rows["cycles to switch · to hand state over"] == "4,510 · 27,000"
        assert summary.verdict(result).endswith(
            " So is the content of all memories, after each of 3 changes of the rings; every word sent before was "
            "received.")

    def test_faults(self):
        assert build()["faults"] is None
        assert build()["wires_per_link"] == [34, 1]
        result = build_faulty()
        assert result["faults"] == {"rate": 1e-4, "seed": 5}
        assert result["wires_per_link"] == [43, 1]
        names = ("faults_injected", "checks_failed", "link_restarts", "words_repeated")
        assert [result[name] for name in names] == [9, 6, 6, 450]
        rows = dict(summary.summary(result))
        assert rows["faults of links · rate · seed"] == "9 · 0.0001 · 5"
        assert rows["… detected by checks of words"] == "6"
        assert rows["restarts of links · words repeated"] == "6 · 450"
        assert rows["wires per link, forward · back"] == "43 · 1"
        assert not {name for name, *_ in summary.summary(build())} & {"wires per link, forward · back"}

    def test_fields(self):
        result = build()
        assert set(result) >= FIELDS
        assert result["accuracy"] == 0.97
        assert result["steps"] == 6
        assert result["cycles_fused_update"] == 6600
        assert result["bound_cycles"] == 6000
        assert result["cycles_scatter_reduce"] == 3600
        assert result["words_sent"] == 6 * 2700 + 15
        assert result["words_dense"] == 18000
        assert len(result["density_per_hop"]) == 3
        assert result["simulated_cycles_per_second"] == 100_000
        assert (result["cycles"], result["cycles_simulated"]) == (1_000_000, 400_000)
        assert (result["threads"], result["arithmetic"]) == (2, "gateware")
        assert result["host_port"] == {"simulated": False, "cycles_modelled": 600_000, "words_modelled": 500_000}
        assert result["training"]["optimizer"] == "momentum"
        assert result["training"]["learning_rate"] == TrainingConfig().optimizer.learning_rate
        assert result["training"]["momentum"] == 0.9
        assert result["training"]["moments"] == "fp32"
        assert result["epochs_to_target"] == {"momentum": 3}
        assert result["target_accuracy"] == 0.97
        assert result["comparison"] is None

    def test_comparison(self):
        result = build_comparison()
        assert result["epochs_to_target"] == {"adam": 3, "sgd": None}
        assert result["training"]["betas"] == (0.9, 0.999)
        assert result["training"]["moments"] == "bf16"
        other = result["comparison"]
        assert other["accuracy"] == 0.875
        assert other["bit_exact"] is True
        assert other["accuracy_per_epoch"] == [0.5, 0.75, 0.875]
        assert other["loss_per_epoch"] == [2.0, 1.0, 0.75]
        assert other["cycles_fused_update"] == 6600
        assert other["words_sent"] == 6 * 2700 + 15
        assert (other["training"]["optimizer"], other["training"]["learning_rate"]) == ("sgd", 1.2)
        assert other["training"]["moments"] is None
        assert result["accuracy"] == 0.97

    def test_density(self):
        result = build_sparse()
        other = result["comparison"]
        assert result["epochs_to_target"] == {"momentum, 10%": None, "momentum": 3}
        assert (result["training"]["label"], other["training"]["label"]) == ("momentum, 10%", "momentum")
        assert (result["training"]["density"], other["training"]["density"]) == (0.1, None)
        assert (result["cycles_sparsify"], other["cycles_sparsify"]) == (1800, 0)
        assert (result["cycles_fused_update"], other["cycles_fused_update"]) == (4800, 6600)
        assert (result["words_sent"], other["words_sent"]) == (9000, 16215)
        assert result["words_scatter_reduce"] == 2400
        assert result["density_per_hop"] == pytest.approx([0.08, 0.1, 0.11])
        assert result["density"] == pytest.approx(0.29 / 3)
        assert len(other["density_per_hop"]) == 3
        assert len(other["per_step"]) == 6

    def test_text(self):
        result = build_text()
        assert result["workload"] == "text"
        assert (result["held_out_loss"], result["bigram_loss"], result["below_bigram"]) == (2.25, 2.5, 0.25)
        assert result["held_out_loss_per_interval"] == [2.8, 2.6, 2.25]
        assert result["loss_per_interval"] == [1.5, 0.5, 0.25]
        assert result["measured_at"] == [2, 4, 6]
        assert (result["cycles_mask"], result["elements_through"], result["elements_masked"]) == (999, 5000, 1200)
        assert result["mask_words_fetched"] == 0
        assert result["sample"] == SAMPLE
        assert result["comparison"] is None
        assert not {"accuracy", "epochs_to_target", "loss_per_epoch"} & set(result)
        assert build()["workload"] == "digits"

    @pytest.mark.parametrize(("accuracies", "epoch"), [
        ([0.96, 0.97, 0.99], 2), ([0.9699, 0.9699], None), ([0.98, 0.5], 1)])
    def test_epochs_to_target(self, accuracies, epoch):
        assert build(measures=accuracies)["epochs_to_target"] == {"momentum": epoch}

    def test_no_time_at_all(self):
        result = report.build_report(TrainingConfig(), training(), simulation(simulation_seconds=0.0))
        assert result["simulated_cycles_per_second"] == 0


@pytest.mark.parametrize(("changes", "sentence"), [
    ({}, "Weights of all nodes identical to each other and to the golden model, bit for bit, after each of 6 "
         "steps."),
    ({"nodes": 1}, "Weights of the node identical to the golden model, bit for bit, after each of 6 steps."),
    ({"bit_exact": None}, "Weights were not compared (--no-check) after each of 6 steps."),
    ({"elements_through": 4321},
     "Weights of all nodes identical to each other and to the golden model, bit for bit, after each of 6 steps. "
     "So are all 4,321 elements that went through masks."),
    ({"bit_exact": None, "steps": 1}, "Weights were not compared (--no-check) after the only step."),
])
def test_verdict(changes, sentence):
    assert summary.verdict(build(**changes)) == sentence


class TestTable:
    def test_lines(self):
        console = Console(width=100)
        with console.capture() as capture:
            console.print(summary.figures(build()))
        text = capture.get()
        for part in ("97.00%", "1.5000 → 0.2500", "4 · momentum · 128", "4,810 · 6", "1,100", "0.901", "100,000",
                     "400,000", "… host ports, modelled", "600,000",
                     "Verilog 1.0 s"):
            assert part in text

    def test_comparison(self):
        rows = dict(summary.summary(build_comparison()))
        assert rows["first epoch with 97%"] == "adam 3 · sgd -"
        assert rows["test accuracy of sgd"] == "87.50%"
        assert "first epoch with 97%" not in dict(summary.summary(build()))

    def test_density(self):
        rows = {name: values for name, *values in summary.summary(build_sparse())}
        assert rows["test accuracy"] == ["96.00%", "97.00%"]
        assert rows["link words per step"] == ["1,500", "2,702"]
        assert rows["… of which gradients"] == ["400", "0"]
        assert rows["density hop by hop"][0] == "8.0% → 10.0% → 11.0%"
        assert rows["… mean"][0] == "9.67%"
        assert rows["cycles per fused update"] == ["800", "1,100"]
        assert rows["cycles per sparsify"] == ["300", "-"]
        assert rows["cycles per step, both"] == ["1,100", "1,100"]
        console = Console(width=100)
        with console.capture() as capture:
            console.print(summary.figures(build_sparse()))
        assert "momentum, 10%" in capture.get()
        assert "momentum, dense" in capture.get()

    def test_density_alone(self):
        result = {**build_sparse(), "comparison": None}
        assert dict(summary.summary(result))["cycles per sparsify"] == "300"
        summary.figures(result)

    def test_text(self):
        rows = dict(summary.summary(build_text()))
        assert rows["held-out loss, nat per character"] == "2.2500"
        assert rows["… of a bigram model"] == "2.5000"
        assert rows["… below it"] == "0.2500"
        assert rows["words of masks fetched"] == "0"
        assert rows["cycles per step's masks"] == "150"
        assert rows["held-out loss after these"] == "2.8000 → 2.2500"

    def test_weight_codec(self):
        """The report contains the number of weights per word, the number of codebooks, and the steps that loaded
        one."""
        coded = training()
        for number, step in enumerate(coded.steps):
            coded.steps[number] = dataclasses.replace(
                step, weight_elements=3000, weight_words=1000, codebook_words=0 if number % 3 else 256)
        setup = simulation()
        setup.configuration["weights"] = {"codec": "table32"}
        result = report.build_report(TrainingConfig(), coded, setup)
        assert (result["codebooks"], result["codebook_words"]) == (2, 512)
        assert (result["weight_elements"], result["weight_words"]) == (18000, 6000)
        rows = dict(summary.summary(result))
        assert rows["new weights on the ring"] == "table32"
        assert rows["… weights per word"] == "3.000"
        assert rows["codebooks · words to all nodes"] == "2 · 512"

    def test_one_node(self):
        rows = dict(summary.summary(build(nodes=1)))
        assert rows["density hop by hop"] == "-"
        assert rows["… of raw words"] == "-"


class TestFiles:
    @pytest.mark.parametrize("nodes", [1, 2, 4, 16])
    def test_written(self, tmp_path, nodes):
        text, picture = write(build(nodes=nodes), tmp_path / "sim")
        assert json.loads(text.read_text()) == build(nodes=nodes)
        height, width, _ = matplotlib.image.imread(picture).shape
        assert (width, height) == (1430, 962)

    @pytest.mark.parametrize("accuracies", [(0.5, 0.75, 0.875), (0.5, 0.98, 0.99)])
    def test_comparison(self, tmp_path, accuracies):
        result = build_comparison(accuracies)
        text, picture = write(result, tmp_path)
        assert json.loads(text.read_text()) == json.loads(json.dumps(result))
        assert picture.stat().st_size > 10_000

    @pytest.mark.parametrize("result", [
        build_sparse(), {**build_sparse(), "comparison": None}, build_text(), build_text(measures=(4.0, 3.0, 2.75)),
        build_text(sample=None, nodes=1), build_changing(TrainingConfig(density=0.1)),
    ], ids=["sparse", "sparse_alone", "text", "text_above", "text_one_node", "sparse_changing"])
    def test_wide(self, tmp_path, result):
        text, picture = write(result, tmp_path)
        assert json.loads(text.read_text()) == json.loads(json.dumps(result))
        height, width, _ = matplotlib.image.imread(picture).shape
        assert (width, height) == (2015, 962)

    def test_one_step(self, tmp_path):
        short = training(steps=1, losses=[1.0], measures=[0.5])
        write(report.build_report(TrainingConfig(epochs=1), short, simulation()), tmp_path)

    def test_no_nan_in_json(self, tmp_path):
        broken = dataclasses.replace(training(), losses=[float("nan")] * 3)
        text, _ = write(report.build_report(TrainingConfig(), broken, simulation()), tmp_path)
        written = json_files.read(text)  # raises an error unless JSON is valid
        assert written["loss_per_epoch"] == [None] * 3
        assert written["not_finite"]["loss_per_epoch[1]"] == "nan"


@pytest.mark.parametrize("make", [build_sparse, build_text])
def test_picture_without_cycles(make, tmp_path):
    """If cycles of steps are not modelled, the picture has neither bars nor a legend for them."""
    result = make()
    for run in filter(None, (result, result["comparison"])):
        for step in run["per_step"]:
            step.update(dict.fromkeys(("cycles", "mask_cycles", "sparsify_cycles", "scatter_cycles")))
    training_picture.draw(result, tmp_path / "report.png", note="note")
    assert (tmp_path / "report.png").stat().st_size > 10_000
