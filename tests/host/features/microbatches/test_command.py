"""The command `gradring train --microbatches`: weights do not depend on the number of nodes."""

import shutil

import pytest

from host.features.microbatches.limits import check_microbatches
from host.training import checkpoint
from host.training.batches import counts_of, waves_of
from host.training.record import TrainingConfig
from tests.host.features.microbatches import elastic
from tests.host.results import results
from tests.refusals import refuses

RUN = ("train", "--transport", "golden", "--gradients", "sum32", "--microbatches", 8, "--batch", 64)
#: Entries of a report that depend on the number of nodes.
COUNTED = ("run", "nodes", "words_sent", "words_dense", "scatter_words", "weight_elements", "weight_words", "density",
           "bound", "scatter_bound", "seconds", "stages")


def rest_of(report):
    """Entries of a report and of its steps that do not depend on the number of nodes."""
    steps = [{name: value for name, value in step.items() if name not in COUNTED} for step in report["per_step"]]
    names = ("losses", "measures", "accuracy", "weights_sha256", "levels", "bit_exact", "parameters")
    return {"steps": steps} | {name: report[name] for name in names if name in report}


@pytest.mark.parametrize("gradients", ["sum32", "sum16"])
def test_numbers_of_nodes(succeed, tmp_path, gradients):
    """Runs on 1, 3, 4 and 8 nodes have the same weights and, apart from words sent, the same figures. Without
    microbatches, weights depend on the number of nodes."""
    runs = []
    for nodes in (1, 3, 4, 8):
        succeed(*RUN, "--gradients", gradients, "--hidden", "none", "--steps", 5, "--nodes", nodes,
                "--output", tmp_path)
        report, trained = results(tmp_path)
        assert report["levels"][-1] == "any number of nodes"
        runs.append((rest_of(report), trained))
    assert all(run == runs[0] for run in runs)
    others = set()
    for nodes in (2, 4):
        succeed("train", "--transport", "golden", "--gradients", gradients, "--hidden", "none", "--steps", 5,
                "--batch", 64, "--nodes", nodes, "--output", tmp_path)
        report, _ = results(tmp_path)
        assert "any number of nodes" not in report["levels"]
        others.add(report["weights_sha256"])
    assert len(others) == 2


def test_text(succeed, tmp_path):
    """Train a text model, with matrices masked on the nodes, and with different numbers of microbatches per node."""
    runs = []
    for nodes in (1, 3):
        succeed("train", "--workload", "text", "--transport", "golden", "--gradients", "sum32", "--microbatches", 4,
                "--batch", 16, "--steps", 1, "--nodes", nodes, "--output", tmp_path)
        report, trained = results(tmp_path)
        runs.append((rest_of(report), trained))
    assert runs[0] == runs[1]


def test_resume(succeed, tmp_path, monkeypatch):
    """A run that continues from its checkpoints on fewer or more nodes has the weights of an undisturbed run."""
    whole, save = tmp_path / "whole", checkpoint.save
    options = (*RUN, "--hidden", "none", "--steps", 6, "--checkpoint", 2)

    def keep(path, identity, content):
        save(path, identity, content)
        shutil.copy(path, tmp_path / str(content["state"]["batches"]["number"]))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", keep)
        succeed(*options, "--nodes", 4, "--output", whole)
    report, trained = results(whole)
    for done, nodes in ((2, 1), (4, 7)):
        folder = tmp_path / f"on-{nodes}"
        folder.mkdir()
        shutil.copy(tmp_path / str(done), folder / checkpoint.NAME)
        succeed(*options, "--nodes", nodes, "--resume", "--output", folder)
        resumed, again = results(folder)
        assert [step["nodes"] for step in resumed["per_step"]] == [4] * done + [nodes] * (6 - done)
        assert again == trained
        assert rest_of(resumed)["weights_sha256"] == report["weights_sha256"]


def test_random_plans(tmp_path):
    """Runs in which cards, nodes and links leave and return end with the weights of a run on one node."""
    expected = elastic.train("digits", tmp_path, **{"ring.nodes": 1})
    for options in elastic.plans(3, 2, 8):
        report = elastic.train("digits", tmp_path, **options)
        assert len({step["nodes"] for step in report["per_step"]}) > 1, options
        assert rest_of(report) == rest_of(expected), options


def test_nodes_that_never_train(succeed, tmp_path):
    """A grid of eight nodes can use four microbatches if at most four nodes train at the same time."""
    succeed(*RUN, "--microbatches", 4, "--hidden", "none", "--steps", 2, "--topology", "2x4", "--disable", "card1@0",
            "--output", tmp_path)
    report, _ = results(tmp_path)
    assert [step["nodes"] for step in report["per_step"]] == [4, 4]


def test_gateware(succeed, nodes_of, tmp_path):
    """A run on Verilated nodes, some of which leave and return, matches the golden model after each step. Its final
    weights equal those of a run on one golden node."""
    nodes_of("microbatches")
    options = ("train", "--gradients", "sum16", "--weights", "bf16", "--microbatches", 8, "--hidden", "none",
               "--batch", 64, "--steps", 5)
    succeed(*options, "--transport", "golden", "--nodes", 1, "--output", tmp_path)
    _, expected = results(tmp_path)
    succeed(*options, "--topology", "2x4", "--disable", "card1@1,node2@3", "--enable", "card1@2", "--threads", 1,
            "--output", tmp_path)
    report, trained = results(tmp_path)
    assert report["bit_exact"] is True
    assert [step["nodes"] for step in report["per_step"]] == [8, 4, 8, 7, 7]
    assert trained == expected


@pytest.mark.parametrize(("options", "message"), [
    (("--nodes", 9), "Microbatches must be between the number of nodes, 9, and 256, not 8"),
    (("--batch", 7, "--nodes", 2),
     "Microbatches must be at most the 6 examples of the smallest batch, not 8: take a larger --batch"),
    (("--microbatches", 300), "Microbatches must be between 1 and 256, not 300"),
    (("--gradients", "raw"), "Option --microbatches with --schedule update is for --gradients sum32 or sum16, not raw"
     " (other sums depend on the order of additions): leave it out"),
    (("--microbatches", 256, "--nodes", 1, "--batch", 300, "--hidden", "none"),
     "Microbatches must be between the number of nodes, 1, and 255, not 256"),
    (("--overlap", "layers"), "Option --microbatches is for a run without --overlap"),
    (("--compute", "node"), "Option --microbatches is for a run without --compute node"),
])
def test_refused(run, tmp_path, options, message):
    code, out, err = run(*RUN, "--steps", 2, *options, "--output", tmp_path / "none")
    assert (code, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1


def test_too_many_for_the_nodes():
    config = TrainingConfig(microbatches=4, batch=8)

    class Examples:
        examples = 100

    check_microbatches(4, Examples, config, nodes=4)
    refuses("Microbatches must be between the number of nodes, 5, and 256, not 4", check_microbatches, 4, Examples,
            config, nodes=5)


def test_shares():
    """Division of microbatches among nodes, and the sets of microbatches that are computed at the same time."""
    assert counts_of(8, 3) == [3, 3, 2]
    assert list(waves_of([3, 3, 2])) == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert list(waves_of([1, 1])) == [[0, 1]]
