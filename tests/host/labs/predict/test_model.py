"""Predictions of a step: models and formats given by name, schedules, and the command."""

import json
import os
import subprocess
import sys

import pytest

from hdl.config import NodeConfig
from host.cycles.collective import collective_cycles
from host.cycles.costs import Format, Zeros
from host.cycles.estimate import Collective, Costs
from host.cycles.timing import timing_of
from host.labs.predict.model import Step, format_of, model_of, predict, sizes
from sim.golden.features.programs.program import GAP
from tests.present import needs

needs("mx")


@pytest.mark.parametrize(("text", "parameters", "widths"), [
    ("digits", 4832, (64, 64, 10)), ("8,4", 64, (8, 4)), ("64", 64, ()), ("25M", 25_000_000, ()),
    ("1.5k", 1500, ())])
def test_models(text, parameters, widths):
    model = model_of(text)
    assert (model.name, model.parameters, model.widths) == (text, parameters, widths)


@pytest.mark.parametrize("text", ["", "1", "digit", "3,", "11G", "-4"])
def test_no_models(text):
    with pytest.raises(ValueError, match=r"Model must be digits, widths of layers as 784,128,10, or a number"):
        model_of(text)


def test_no_width():
    with pytest.raises(ValueError, match="Widths must be at least 1, not 3,0"):
        model_of("3,0")


@pytest.mark.parametrize(("text", "form"), [
    ("dense", Format()), ("10%", Format(density=0.1)), ("2.5%-apart", Format(density=0.025, zeros=Zeros.APART)),
    ("mx9", Format(gradients="mx9", weights="mx9")), ("mx4/zero_value", Format(weights="mx4"))])
def test_formats(text, form):
    assert format_of(text) == form


@pytest.mark.parametrize("text", ["", "10", "zero_value", "table32", "mx9/", "mx9/table32", "sum32/raw"])
def test_no_formats(text):
    with pytest.raises(ValueError, match=r"Format must be dense, a density as 10% or 10%-apart, one of .*, or"):
        format_of(text)


@pytest.mark.parametrize("text", ["sum32", "raw/sum16"])
def test_sums_of_integers(text):
    """Formats that sum integers are rejected, and the message gives the reason."""
    needs("reproducible", what="A format of integers")
    name = text.rpartition("/")[2]
    with pytest.raises(ValueError, match=rf"^Codec of gradients must not sum integers to be predicted, as {name} "
                                         r"does \(packets also contain .*\): choose another one, such as raw$"):
        format_of(text)


def test_a_vector_is_one_update():
    actual = predict(model_of("5000"), "dense", Step(), nodes=3, latency=20, clock=1e6)
    update = collective_cycles(Collective.FUSED_UPDATE, Format(), timing_of(NodeConfig()), length=5024, nodes=3,
                               latency=20)
    assert (actual.communicate, actual.words, actual.compute) == (Costs.latch + update.cycles, update.words, 0)
    assert actual.seconds == actual.cycles / 1e6
    assert 0 <= actual.cycles - actual.communicate <= 2 * GAP


@pytest.mark.parametrize(("schedule", "updates"), [("none", 1), ("layers", 3), ("chunks:2", 2), ("strict", 5)])
def test_schedules(schedule, updates):
    actual = predict(model_of("32,32,16,10"), "mx9", Step(overlap=schedule), nodes=20, latency=16, clock=1e6)
    assert len([span for span in actual.spans if span.queue == 1 and span.name != "latch"]) == updates
    longest = max(actual.compute, actual.communicate)
    assert longest <= actual.cycles <= actual.compute + actual.communicate + 100
    assert (actual.cycles < actual.compute + actual.communicate) == (schedule != "none")


def test_products_are_the_array_s():
    slow, fast = (predict(model_of("digits"), "dense", Step(macs=macs), nodes=2, latency=16, clock=1e6)
                  for macs in (4, 16))
    terms = 32 * (64 * 64 * 2 + 64 * 10 * 3)
    assert terms / 4 < slow.compute < 1.4 * terms / 4
    assert terms / 16 < fast.compute < 1.4 * terms / 16


@pytest.mark.parametrize(("options", "message"), [
    ({"macs": 5}, "Multiply-adds per cycle must be 0, 4, 8, 16, 32, not 5"),
    ({"overlap": "delayed:1"}, "Schedule that is predicted must be none, strict, layers or chunks:n"),
    ({"overlap": "layers"}, "Schedule of a model without layers must be none, not layers"),
    ({"examples": 0}, "Examples must be between 1 and 4,095, not 0"),
])
def test_refused(options, message):
    with pytest.raises(ValueError, match=message):
        predict(model_of("100"), "dense", Step(**options), nodes=2, latency=1, clock=1e6)


def test_sizes():
    assert sizes(2) == [2]
    assert sizes(8) == [2, 4, 8]
    assert sizes(1000) == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]


def test_command(tmp_path):
    command = [sys.executable, "-m", "gradring", "lab", "predict", "--nodes", "300", "--link-latency", "64",
               "--model", "20k", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300,
                          env={**os.environ, "COLUMNS": "100"})
    assert "on 300 nodes" in done.stdout
    content = json.loads((tmp_path / "predict.json").read_text())
    assert content["modelled"] is True
    assert {(row["format"], row["nodes"]) for row in content["rows"]} == {
        (form, nodes) for form in ("dense", "10%", "mx9") for nodes in sizes(300)}
    assert all(row["seconds"] == row["cycles"] / 62.5e6 for row in content["rows"])
    assert (tmp_path / "predict.png").read_bytes().startswith(b"\x89PNG")


def test_command_validates():
    done = subprocess.run([sys.executable, "-m", "gradring", "lab", "predict", "--validate"], capture_output=True,
                          text=True, check=True, timeout=300, env={**os.environ, "COLUMNS": "100"})
    assert "none of which was fitted" in done.stdout
    assert "fused_update, mx9" in done.stdout
