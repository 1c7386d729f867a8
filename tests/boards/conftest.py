"""Fixtures for the tests of boards: a folder for exported files."""

import pytest

from boards import verilog


@pytest.fixture
def verilog_folder(tmp_path, monkeypatch):
    """An empty folder for exported files."""
    monkeypatch.setattr(verilog, "RESULTS", tmp_path)
    return tmp_path
