# amaranth: UnusedElaboratable=no
"""Exported files pass Verilator's lint, with warnings treated as errors."""

import pytest

from boards import verilog, verilog_lint
from sim.verilated import toolchain


def test_a_warning_is_an_error(tmp_path):
    path = tmp_path / "floating.comparator.v"
    path.write_text(verilog.design("floating.comparator").text.replace(".a(a)", ".a(a[30:0])"))
    with pytest.raises(toolchain.ToolError, match=r"(?s)%Warning-WIDTHEXPAND.*'a' expects 32 bits"):
        verilog_lint.lint(path)
    path.write_text(verilog.design("floating.comparator").text.replace("    .a(a),\n", ""))
    with pytest.raises(toolchain.ToolError, match=r"(?s)%Warning-PINMISSING.*'a'"):
        verilog_lint.lint(path)


def test_words_of_later_languages_are_names(tmp_path):
    """Files are read as Verilog-2005, so keywords of later versions are valid names."""
    path = tmp_path / "names.v"
    ports = "input wire logic, output wire bit"
    path.write_text(f"module gradring_names ({ports});\n  assign bit = logic;\nendmodule\n\n")
    verilog_lint.lint(path)


def test_what_verilator_says_is_an_error(verilog_folder, monkeypatch):
    monkeypatch.setattr(toolchain, "run", lambda *arguments, **options: "%Something: else\n")
    path = verilog_folder / "x.v"
    path.write_text("module gradring_x ();\nendmodule\n\n")
    message = r"^Verilator has something to say about x\.v:\n%Something: else\n$"
    with pytest.raises(toolchain.ToolError, match=message):
        verilog_lint.lint(path)


def test_lint_fails_the_command(verilog_folder, monkeypatch, capsys):
    monkeypatch.setattr(verilog_lint, "WAIVED", {})
    assert verilog.main(["--unit", "stream.skid_buffer"]) == 1
    assert "%Warning-UNUSEDSIGNAL" in capsys.readouterr().err  # last lines of Verilator's output
