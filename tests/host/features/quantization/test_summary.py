import io
import re

from rich.console import Console

from host.features.quantization import experiment as quantize
from host.features.quantization.experiment import candidates
from host.features.quantization.report import advice, table, verdict
from tests.host.features.quantization.networks import GoldenRing, trained


def test_table(report):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(report))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    line = lines[next(number for number, line in enumerate(lines) if line.startswith("8, layer")) + 1]
    assert re.search(r"symmetric +97\.\d\d% +97\.\d\d% +0\.500 · 0\.\d{3} +4,800 +0 +300 ", line)
    assert sum(bool(re.search(r"float-offset .* 4,736 +148 +- ", line)) for line in lines) == 6
    assert sum("8+4, output, skewed" in line for line in lines) == 1
    assert not any("!" in line or "…" in line for line in lines)


def test_verdict(report):
    text = verdict(report)
    assert text.startswith("Scores of all 13,680 inferences on 4 nodes identical to the golden model, bit for "
                           "bit. IAQ to float: +0.00 points with 8 bits, -")
    assert " points with 4 bits. Skewed layer with 4 bits, IAQ to symmetric: +" in text
    assert re.search(r"\+\d\.\d dB and \+\d\.\d\d points per layer, \+\d\.\d dB and \+\d\.\d\d points per "
                     r"output\.$", text)


def test_luts():
    data, layers = trained()
    chosen = [candidate for candidate in candidates(2) if candidate.config.bits == 4][:1]
    result = quantize.collect(layers, data, GoldenRing(), chosen)
    assert result["rows"][0]["lut4"] is None
    assert advice(result) == (
        "For LUT4: python -m boards.synth --count --unit quantization.integer_offset --set bits=4")
    result = quantize.collect(layers, data, GoldenRing(), chosen, lut4={chosen[0].unit: 700}.get)
    assert result["rows"][0]["lut4"] == 700
    assert advice(result) is None
