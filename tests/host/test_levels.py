"""Reproducibility levels in reports and on their pages."""

import itertools
import json

import numpy as np
import pytest

from hdl.group import GROUP
from host.levels import Level, described_levels, levels_of_ring
from host.models.layer_shapes import in_groups, layers_of
from sim.golden.codecs import CODECS
from sim.golden.ring import all_reduce
from tests.present import needs


def test_levels():
    assert levels_of_ring("raw") == ["run to run", "any processor", "any cut"]
    assert levels_of_ring("raw", cut=False) == ["run to run", "any processor"]
    assert described_levels(levels_of_ring("raw")) == (
        "Sums have the same bits: run to run, any processor, any cut; not for any order and topology, any number of "
        "nodes.")
    assert described_levels(list(Level)) == (
        "Sums have the same bits: run to run, any processor, any cut, any order and topology, any number of nodes.")


@pytest.mark.parametrize(("widths", "whole"), [
    ((64, 10), True), ((64, 64, 10), True), ((64, 17, 10), False), ((63, 17, 10), True), ((63, 1, 15, 3), False),
    ((63, 1, 16, 3), True)])
def test_layers_in_groups(widths, whole):
    """Layers can be summed separately if each layer begins a group even without padding."""
    assert in_groups(widths) is whole
    assert whole is ([layer.base for layer in layers_of(widths)] == [
        sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths[:count]))
        for count in range(1, len(widths))])


@pytest.mark.parametrize("hidden", [64, 17])
def test_cuts_between_layers(hidden):
    """If each layer begins a group, separate sums of layers have the same bits as one sum of the whole vector;
    otherwise, they do not. The test uses the digits' perceptron with raw gradients on four nodes."""
    widths = (64, hidden, 10)
    lengths = [(inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths)]
    gradients = np.random.default_rng(5).standard_normal((4, sum(lengths)), np.float32).view(np.uint32)
    whole, _ = all_reduce(gradients, gradient_codec=CODECS["raw"])
    parts, base = [], 0
    for layer, length in zip(layers_of(widths), lengths, strict=True):
        part = np.pad(gradients[:, base:base + length], ((0, 0), (0, layer.length - length)))
        total, _ = all_reduce(part, gradient_codec=CODECS["raw"], block_offset=layer.base // GROUP % 4)
        parts.append(total[:length])
        base += length
    assert np.array_equal(whole, np.concatenate(parts)) is in_groups(widths)
    assert np.array_equal(whole[:lengths[0]], parts[0])


@pytest.mark.parametrize(("hidden", "levels"), [
    ("none", ["run to run", "any processor", "any cut"]), ("17", ["run to run", "any processor"])])
def test_levels_of_runs(succeed, tmp_path, hidden, levels):
    """The report includes the reproducibility level "any cut" only if layers can be summed separately."""
    succeed("train", "--transport", "golden", "--nodes", 3, "--steps", 1, "--hidden", hidden, "--output", tmp_path,
            "--overlap", "layers")
    assert json.loads((tmp_path / "report.json").read_text())["levels"] == levels
    assert ("any cut; not for" in (tmp_path / "report.html").read_text()) is ("any cut" in levels)


def test_sums_of_integers():
    needs("reproducible", what="A format of integers")
    assert levels_of_ring("sum32") == ["run to run", "any processor", "any cut", "any order and topology"]
    assert levels_of_ring("sum16", cut=False)[-1] == Level.ANY_ORDER
