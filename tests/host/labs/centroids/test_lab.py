"""Training of centroid tables on golden nodes; ``gradring lab centroids`` uses simulated rings."""

import dataclasses
import json

import pytest

from host.labs.centroids.lab import RATE, Row, compare, nodes_for, table
from host.training.optimizers import SGD
from host.training.record import HOST, NODE, TrainingConfig
from sim import json_files
from tests.host.golden import GoldenRing


def _tables(seed, epochs):
    return TrainingConfig(epochs=epochs, seed=seed, optimizer=SGD(learning_rate=RATE, momentum=0.9))


def test_accuracy(data):
    """With 16 centroids per table, the accuracy for one seed differs from the dense perceptron's by less than one
    percentage point."""
    row = compare(GoldenRing(4), data, TrainingConfig(), _tables(0, 2))
    assert row.seed == 0
    assert row.dense >= 0.96
    assert row.trained >= row.dense - 0.01
    assert row.steps == 24
    # Two tables and 64 + 10 biases take the place of 4,810 parameters.
    assert row.table_words < row.dense_words / 20


def test_tables_are_trained(data):
    """With four centroids, clustering loses much of the accuracy, and training recovers some of it."""
    row = compare(GoldenRing(4), data, TrainingConfig(), _tables(0, 3), centroids=4)
    assert row.clustered < row.dense - 0.02
    assert row.trained > row.clustered + 0.005


def test_nodes_that_compute(data):
    """Compute nodes give the same bits as the host, with 16 multiplications per output, including padding."""
    configs = [TrainingConfig(epochs=1, compute=NODE), dataclasses.replace(_tables(0, 1), compute=NODE)]
    node = nodes_for(*configs, centroids=16, nodes=4)
    assert (node.compute.rows, node.compute.codebook) == (4, 16)
    row = compare(GoldenRing(4, config=node), data, *configs)
    host = compare(GoldenRing(4), data, *(dataclasses.replace(config, compute=HOST) for config in configs))
    assert (row.dense, row.clustered, row.trained) == (host.dense, host.clustered, host.trained)
    assert host.multiplications == 0
    # Ten outputs take the time of twelve, and 29 or 30 examples per node take the time of 32.
    least = 16 * (2 * (64 + 12) + 64) / (2 * (64 + 10) + 64)
    assert least * 32 / 30 < row.multiplications < least * 32 / 29


def test_table(data):
    few = TrainingConfig(epochs=1, seed=3)
    row = compare(GoldenRing(2), data, few, _tables(3, 1))
    cells = table([row, row]).cells
    assert [line[0] for line in cells] == ["3", "3", "mean"]
    assert cells[0][1:] == cells[2][1:]


@pytest.mark.parametrize(("options", "message"), [
    (("--seeds", "0"), "Seeds must be between 1 and 1,000,000,000, not 0"),
    (("--nodes", "17"), "Nodes must be between 1 and 16, not 17"),
    (("--centroids", "64"), "Centroids must be 4, 8 or 16 on nodes that compute, not 64: choose one of these, or "
                            "--compute host"),
    (("--centroids", "1", "--compute", "host"), "Centroids must be between 2 and 256, not 1"),
    (("--compute", "hots"), "Compute must be one of host, node, not 'hots': did you mean host?"),
])
def test_options(run, options, message):
    """An invalid option is rejected with a one-line message before anything is built."""
    assert run("lab", "centroids", *options) == (1, "", f"error: {message}\n")


def test_goes_on(tmp_path, run):
    """The lab reuses results of an earlier run with the same options."""
    rows = [Row(seed=seed, dense=0.97, clustered=0.96, trained=0.97 - seed / 1000, dense_words=1, table_words=1,
                steps=1, cycles=1, multiplications=16) for seed in range(2)]
    kept = {"nodes": 4, "centroids": 16, "epochs": 5, "learning_rate": RATE, "compute": NODE,
            "rows": [dataclasses.asdict(row) for row in rows]}
    (tmp_path / "tables.json").write_text(json.dumps(json_files.sealed(kept)))
    code, out, _ = run("lab", "centroids", "--seeds", "2", "--output", tmp_path)
    assert code == 0
    lines = out.splitlines()
    assert [line.split() for line in lines[-3:]] == table(rows).cells
