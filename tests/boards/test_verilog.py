# amaranth: UnusedElaboratable=no
"""Test Verilog export: every unit, names, options, invalid arguments, and the documentation page."""

import os
import re
from pathlib import Path

import pytest

from boards import verilog, verilog_lint
from boards.units import UNITS
from sim.verilated import toolchain
from sim.verilated.verilog import Design
from tests.boards.small_units import small

PAGE = Path(__file__).parents[2] / "docs" / "verilog.md"


@pytest.mark.parametrize("name", sorted(UNITS))
def test_every_unit_is_clean(name, verilog_folder):
    """Verilator gives no warnings for any unit, and the header comment has one line per stream or other port."""
    options = small(name)
    path = verilog.write(name, options=options)
    text = path.read_text()
    header, _, module = text.partition("\nmodule ")
    assert header.startswith(f"// {path.stem}, of gradring {toolchain.version('gradring')}\n")
    assert " at 0x" not in header
    assert "(* top" not in text
    ports = re.findall(r"^  (?:input|output) wire (?:\[\d+:0\] )?(\w+)[,\n]", module.partition(");")[0],
                       flags=re.MULTILINE)
    described = re.findall(r"^//   (\w+)[:,] ", header, flags=re.MULTILINE)
    assert {re.sub(r"_t(valid|ready|data|keep|last)$", "", port) if "_axis_" in port else port
            for port in ports} - {"aclk", "aresetn"} == set(described)


def test_files_are_the_same_each_time(verilog_folder, monkeypatch):
    first = verilog.write("rows.serializer")
    text, control = first.read_text(), first.with_suffix(".vlt").read_text()
    monkeypatch.setenv("GRADRING_CACHE", str(verilog_folder / "cache"))  # an empty cache: no earlier build is reused
    assert verilog.write("rows.serializer").read_text() == text
    assert first.with_suffix(".vlt").read_text() == control
    assert sorted(path.name for path in verilog_folder.glob("rows*")) == ["rows.serializer.v", "rows.serializer.vlt"]


def test_two_units_in_one_project(verilog_folder):
    """Verilog files of different units, or of one unit with other options, share no module names."""
    names = [set(re.findall(r"^module (\S+?) ?\(", verilog.design(unit, options=options).text, flags=re.MULTILINE))
             for unit, options in (("compression.zero_value.encoder", {}), ("compression.zero_value.decoder", {}),
                                   ("compression.zero_value.encoder", {"lanes": 8}))]
    assert all(len(modules) > 2 for modules in names)
    assert len(set.union(*names)) == sum(map(len, names))


def test_primitives_are_named(verilog_folder):
    text = verilog.write("optimizer.fixed_lane", options={"primitive": True}).read_text()
    assert "\n// Needs MULT18X18D, a primitive of the part, which is not in this file.\n" in text
    assert "Needs" not in verilog.write("optimizer.fixed_lane").read_text()


def test_options_of_a_node(verilog_folder, monkeypatch, capsys):
    monkeypatch.setattr(verilog, "lint", lambda path: None)
    made = {}

    def wrap(component, *, name, title):
        made.update(config=component.config, name=name, title=title)
        return Design(name, "", ())

    monkeypatch.setattr(verilog, "wrap", wrap)
    assert verilog.main(["--unit", "node", "--lanes", "2", "--set", "weights.codec=mx9", "masking=False",
                         "--set", "memories.planes=1"]) == 0
    config = made["config"]
    assert (config.lanes, config.weights.codec, config.masking, config.memories.planes) == (2, "mx9", False, 1)
    assert made["name"] == "gradring_node_lanes_2_masking_False_memories_planes_1_weights_codec_mx9"
    label = "node-lanes=2-masking=False-memories.planes=1-weights.codec=mx9"
    assert capsys.readouterr().out == os.path.relpath(verilog_folder / f"{label}.v") + "\n"
    assert made["title"][0].startswith(f"{label}, of gradring ")
    assert made["title"][3].startswith("Parameters: lanes=2, segment=256, ")
    assert "weights.codec='mx9', weights.master=False, gradients='zero_value'" in made["title"][3]


def test_long_names_are_digests(verilog_folder, monkeypatch):
    monkeypatch.setattr(verilog, "lint", lambda path: None)
    path = verilog.write("rows.serializer", options={"lanes": 2})
    assert path.name == "rows.serializer-lanes=2.v"
    monkeypatch.setattr(verilog, "LABEL", len(path.stem) - 1)
    path, other = (verilog.write("rows.serializer", options={"lanes": lanes}) for lanes in (2, 4))
    assert re.fullmatch(r"rows\.serializer-[0-9a-f]{8}\.v", path.name)
    assert f"\nmodule gradring_{path.stem.replace('.', '_').replace('-', '_')} (\n" in path.read_text()
    assert "\n// Parameters: lanes=2\n" in path.read_text()
    assert other.name != path.name


def test_unknown_unit(verilog_folder, capsys):
    assert verilog.main(["--unit", "floating.subtract"]) == 1
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: Unit must be one of the \d+ of `python -m boards.verilog --list`, not "
                        r"'floating\.subtract': did you mean .*\?\n", error)
    assert not list(verilog_folder.iterdir())


@pytest.mark.parametrize(("unit", "option", "message"), [
    ("stream.queue", "width=3", "Option of Queue must be one of shape, depth, block, not 'width'"),
    ("stream.queue", "depth=0", "Queue depth must be a positive integer, not 0"),
    ("stream.queue", "depth=deep", "Queue depth must be a positive integer, not 'deep'"),
    ("node", "lanes=3", "NodeConfig.lanes must be 1, 2, 4 or 8, not 3"),
    ("node", "masking=no", "NodeConfig.masking must be True or False, not 'no'"),
    ("node", "width=3", "Option must be one of the 39 of docs/node.md, not 'width'"),
    ("node", "link.mesages=True", "Option must be one of the 39 of docs/node.md, not 'link.mesages': did you mean "
                                  "link.messages or link.ingress?"),
    ("node", "link=slot", "Kind of link must be one of credits, replay, slots, job_slots, not 'slot': did you mean "
                          "slots?"),
    ("node", "link.messages=True", "Field of link credits must be one of ingress, not 'messages'"),
    ("node", "optimizer.lanes=8", "optimizer.lanes must be at most lanes, since a step of the optimizer takes "
                                  "elements of one memory row: lower optimizer.lanes or raise lanes"),
])
def test_wrong_options(unit, option, message, verilog_folder, capsys):
    assert verilog.main(["--unit", unit, "--set", option]) == 1
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize("option", ["depth", "=3", "depth="])
def test_malformed_option(option, capsys):
    with pytest.raises(SystemExit):
        verilog.main(["--unit", "stream.queue", "--set", option])
    assert f"option must be NAME=VALUE, not {option!r}" in capsys.readouterr().err


def test_list(capsys):
    assert verilog.main(["--list"]) == 0
    assert capsys.readouterr().out.split() == sorted(UNITS)


def test_page_shows_the_header():
    header = verilog.design("compression.zero_value.encoder").text.partition("\n\nmodule ")[0]
    assert f"```\n{header}\n```\n" in PAGE.read_text()


def test_module_of_the_page_has_all_ports(tmp_path):
    """Verilator gives no warnings for the module on the documentation page, so its ports and widths are correct."""
    module = re.search(r"```verilog\n(module (\w+) .*?)```", PAGE.read_text(), flags=re.DOTALL)
    design = verilog.design("compression.zero_value.encoder")
    assert set(re.findall(r"\.(\w+)\(", module[1])) == {port.name for port in design.ports}
    path = tmp_path / "page.v"
    path.write_text(module[1].replace(module[2], "gradring_page") + "\n" + design.text)
    verilog_lint.lint(path)
