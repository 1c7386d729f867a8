"""The `gradring lab migrate` command: a moved job, its report, and invalid options."""

import json

import pytest

from host.labs.migrate import lab as command
from host.transports.session import open_session
from sim.verilated.board import RATES
from tests.host import rings


def test_run(succeed, monkeypatch, tmp_path):
    """A job moves from a board, here replaced by a simulated ring; tests/host/migration/test_board.py uses a
    board."""
    asked = []

    def opened(config, *, transport, rates=None, **options):
        asked.append(transport.value)
        return open_session(config, **options)

    monkeypatch.setattr(command.JobOptions, "node", lambda *arguments: rings.CONFIGS["mx9"])
    monkeypatch.setattr(command, "open_session", opened)
    key = tmp_path / "key"
    key.write_bytes(b"secret of the operator, 32 bytes")
    out = succeed("lab", "migrate", "--nodes", 2, "--steps", 4, "--after", 2, "--optimizer", "adam", "--weights",
                  "mx9", "--gradients", "mx9", "--key", key, "--source", "board", "--output", tmp_path / "out")
    assert asked == ["verilated", "board", "verilated"]
    assert "moved after step 2 of 4 · final weights, state and losses have the bits of the run that stayed" in out
    text = (tmp_path / "out" / "migrate.json").read_text()
    content = json.loads(text)
    assert content["bit_exact"] is True
    assert 0 < content["cycles"] == sum(content[name] for name in ("read", "load", "read_back", "start"))
    assert content["cycles"] <= content["bound"]
    cycles = content["live_words"] * 2 * 40 * RATES["clock"] // RATES["baud"]
    assert content["line"] == {"source": cycles, "target": 0}
    assert (f"source: the words of a pass take {cycles:,} cycles on the board's line, 2 nodes * "
            f"{content['live_words']:,} words * 40 * clock / baud\n") in out
    assert json.loads((tmp_path / "out" / "ledger.json").read_text()) == {"owner": "target", "sequence": 1}
    assert (tmp_path / "out" / "target" / "checkpoint.tar").exists()
    assert not (tmp_path / "out" / "source" / "checkpoint.tar").exists()
    assert "secret" not in out + text


@pytest.mark.parametrize(("options", "message"), [
    (("--after", 25), "Steps before the move must be between 0 and 24, not 25"),
    (("--optimizer", "sgd"), "Optimizer of a job to be moved must be momentum or adam, not 'sgd'"),
    (("--transport", "pysim"), "Target must be verilated, board or serial, not 'pysim'"),
    (("--source", "pysim"), "Source must be verilated, board or serial, not 'pysim'"),
    (("--source", "serial"), "Serial port and board must be given for a source or a target that is serial, and for "
                             "no other"),
    (("--board", "ulx3s-85f"), "for a source or a target that is a board, not 'ulx3s-85f'"),
    (("--board", "icebreaker", "--source", "board"), "Board must be one of simulated, ulx3s-85f, "),
    (("--board", "ulx3s-85f", "--source", "board", "--nodes", 3), "Nodes must be the 2 of ulx3s-85f, not 3"),
    (("--board", "ulx3s-25f", "--source", "board", "--hidden", "64"), "Model must have room in the memories of "
                                                                      "ulx3s-25f, not 4,810 parameters"),
    (("--weights", "centroid16"), "Codec of weights must have no codebook here, not be 'centroid16'"),
    (("--gradients", "table32"), "Codec of gradients must be one of "),
    (("--key", "none"), "No such file or directory"),
])
def test_refused(run, options, message, tmp_path):
    code, _, err = run("lab", "migrate", *options, "--output", tmp_path / "out")
    assert code == 1
    assert message in err
