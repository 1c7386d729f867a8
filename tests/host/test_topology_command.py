"""The command `gradring train` on a grid of simulated nodes, whose parts leave and come."""

import json
import shutil

from host.training import checkpoint
from host.training import weight_files as weights

RUN = ("train", "--topology", "2x4", "--hidden", "none", "--batch", 200, "--threads", 1)
CHANGES = ("--disable", "card1@2,link0:0@5,node5@7", "--enable", "card1@4,link0:0@6")
STEPS = ("--steps", 9, "--interval", 3)
#: Figures of the time that a run took.
TIMED = ("stage_seconds", "simulated_cycles_per_second")


def result(folder):
    """Report but for its times, and bytes of the trained weights."""
    report = json.loads((folder / "report.json").read_text())
    trained = weights.load(folder / "weights.npz").parameters.tobytes()
    return {name: value for name, value in report.items() if name not in TIMED}, trained


def test_leave_and_come(run, nodes_of, tmp_path, monkeypatch):
    """8, 4, 8, 8 and 7 nodes, without a card, a link and a node: equal to the golden model in each step; and the same
    bits and figures for runs that go on before, at and behind a change."""
    nodes_of("engines")
    whole, save = tmp_path / "whole", checkpoint.save

    def keep(path, identity, content):
        save(path, identity, content)
        shutil.copy(path, tmp_path / str(content["state"]["batches"]["number"]))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", keep)
        code, out, err = run(*RUN, *STEPS, *CHANGES, "--checkpoint", 1, "--output", whole)
    assert (code, err) == (0, "")
    report, trained = result(whole)
    assert report["bit_exact"] is True
    assert [step["nodes"] for step in report["per_step"]] == [8, 8, 4, 4, 8, 8, 8, 7, 7]
    print(out)
    for done in (1, 2, 3, 7):
        folder = tmp_path / f"from-{done}"
        folder.mkdir()
        shutil.copy(tmp_path / str(done), folder / checkpoint.NAME)
        code, out, err = run(*RUN, *STEPS, *CHANGES, "--resume", "--output", folder)
        assert (code, err) == (0, "")
        found, again = result(folder)
        assert again == trained, done
        assert found == report, done
