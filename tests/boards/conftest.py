"""A folder for exported files."""

import pytest

from boards import verilog


@pytest.fixture
def verilog_folder(tmp_path, monkeypatch):
    """The folder that exported files are written to, empty."""
    monkeypatch.setattr(verilog, "RESULTS", tmp_path)
    return tmp_path
