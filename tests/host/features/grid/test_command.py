"""The command `gradring train` on a grid of simulated nodes, some of which leave and rejoin during the run."""

import contextlib
import shutil

import pytest

from host.run import steps
from host.training import checkpoint
from tests import mx5
from tests.host.results import results

RUN = ("train", "--topology", "2x4", "--hidden", "none", "--batch", 200, "--threads", 1)
CHANGES = ("--disable", "card1@2,link0:0@5,node5@7", "--enable", "card1@4,link0:0@6")
STEPS = ("--steps", 9, "--interval", 3)


def test_leave_and_come(run, succeed, nodes_of, tmp_path, monkeypatch):
    """A run in which a card, a link and a node leave, so that it has 8, 4, 8, 8 and 7 nodes, matches the golden model
    in each step. Runs resumed before, at and after a change have the same bits and report the same figures."""
    nodes_of("engines")
    whole, save = tmp_path / "whole", checkpoint.save

    def keep(path, identity, content):
        save(path, identity, content)
        shutil.copy(path, tmp_path / str(content["state"]["batches"]["number"]))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", keep)
        out = succeed(*RUN, *STEPS, *CHANGES, "--checkpoint", 1, "--output", whole)
    for line in ("topology: 2 x 4 nodes\n  from step 1: 8 nodes, grid\n  from step 3, disable card1: 4 nodes, flat\n",
                 "after step 2, disable card1: 4 nodes, flat; ", "after step 7, disable node5: 7 nodes, flat; ",
                 "after each of 5 changes of the rings; every word sent before was received."):
        assert line in out
    report, trained = results(whole)
    assert report["bit_exact"] is True
    assert [step["nodes"] for step in report["per_step"]] == [8, 8, 4, 4, 8, 8, 8, 7, 7]
    assert report["topology"]["requests"] == ["disable card1@2", "enable card1@4", "disable link0:0@5",
                                              "enable link0:0@6", "disable node5@7"]
    changes = report["changes"]
    assert [(change["shape"], change["left"], change["joined"]) for change in changes] == [
        ("flat", [4, 5, 6, 7], []), ("grid", [], [4, 5, 6, 7]), ("flat", [], []), ("grid", [], []), ("flat", [5], [])]
    assert all(change["switch_cycles"] > 0 and change["handover_cycles"] > 0 for change in changes)
    assert "Rings, from change to change" in (whole / "report.html").read_text()
    assert (whole / "report.png").stat().st_size > 10_000
    for done in (1, 2, 3):
        folder = tmp_path / f"from-{done}"
        folder.mkdir()
        shutil.copy(tmp_path / str(done), folder / checkpoint.NAME)
        succeed(*RUN, *STEPS, *CHANGES, "--resume", "--output", folder)
        resumed, again = results(folder)
        assert again == trained, done
        assert resumed == report, done

    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "3", tmp_path / "other" / checkpoint.NAME)
    again = (*RUN, *STEPS, "--resume", "--output", tmp_path / "other")
    code, _, err = run(*again, "--disable", "card1@1,node5@7", "--enable", "card1@4")
    assert code == 1
    assert err.endswith(f"{checkpoint.NAME} must be of a run with the same changes before step 4, not with disable "
                        f"card1@2 (here disable card1@1); take those, or leave out --resume to begin anew\n")
    succeed(*again, "--disable", "card1@2", "--enable", "card1@6")  # changes later in the run may differ
    resumed, again = results(tmp_path / "other")
    assert resumed["bit_exact"] is True
    assert [step["nodes"] for step in resumed["per_step"]] == [8, 8, 4, 4, 4, 4, 8, 8, 8]


def test_faults(succeed, nodes_of, tmp_path):
    """On faulty links with replay, a run in which a card leaves and rejoins has the same bits as without faults."""
    runs = []
    with mx5.registered():
        nodes_of("narrow")
        for rate in (0, 1e-3):
            out = succeed(*RUN, "--gradients", "mx5", "--weights", "bf16", "--steps", 4, "--disable", "card1@1",
                          "--enable", "card1@3", "--faults", rate, "--output", tmp_path)
            assert "after each of 2 changes of the rings; every word sent before was received." in out
            runs.append(results(tmp_path))
    (clean, trained), (faulty, again) = runs
    assert trained == again
    assert clean["bit_exact"] is faulty["bit_exact"] is True
    assert [step["nodes"] for step in faulty["per_step"]] == [8, 4, 4, 8]
    assert clean["words_sent"] == faulty["words_sent"]
    assert clean["link_restarts"] == 0 < faulty["link_restarts"]
    assert faulty["wires_per_link"] == [43, 1]


def test_density_and_comparison(succeed, nodes_of, tmp_path):
    """A run with sparse gradients on a 2-D grid, in which heirs take over the errors of nodes that leave, and a dense
    run for comparison."""
    nodes_of("engines")
    succeed(*RUN, "--steps", 5, "--interval", 5, "--density", 0.3, "--compare", "--disable", "node6@1,card0@3",
            "--enable", "node6@2", "--output", tmp_path)
    report, _ = results(tmp_path)
    for outcome in (report, report["comparison"]):
        assert outcome["bit_exact"] is True
        assert [step["nodes"] for step in outcome["per_step"]] == [8, 7, 8, 4, 4]
        assert [len(step["density"]) for step in outcome["per_step"]] == [4, 6, 4, 3, 3]
    assert [change["heirs"] for change in report["changes"]] == [[[6, 7]], [], [[0, 4], [1, 5], [2, 6], [3, 7]]]
    assert [change["heirs"] for change in report["comparison"]["changes"]] == [[], [], []]


def test_memories_of_the_fewest(run, monkeypatch):
    """Memories are sized for the fewest nodes of a run: here, a single node with all 22,810 parameters."""
    @contextlib.contextmanager
    def show(config, *, nodes, grid, **options):
        raise ValueError(f"{config.memories.state} words, {config.topology.ports} ports, {nodes} nodes, {grid}")
        yield

    monkeypatch.setattr(steps, "open_session", show)
    code, out, err = run("train", "--topology", "2x2", "--hidden", 300, "--disable", "card1@1,node1@2")
    assert (code, err) == (1, "error: 32768 words, 2 ports, 4 nodes, (2, 2)\n")
    assert "  from step 3, disable node1: 1 node, flat\n" in out


@pytest.mark.parametrize(("arguments", "message"), [
    (["--topology", "2-4"], "Topology must be rows and columns like 2x4, not '2-4'"),
    (["--topology", "4x5"], "Ring must have between 1 and 16 nodes, not 20"),
    (["--topology", "2x4", "--nodes", 4],
     "Nodes must be 8 with --topology 2x4, not 4: leave out --nodes"),
    (["--disable", "card1@40"], "Option --disable is for a run with --topology (only parts of a grid can leave and "
                                "return): leave it out"),
    (["--enable", "card1@40"], "Option --enable is for a run with --topology (only parts of a grid can leave and "
                               "return): leave it out"),
    (["--shape", "flat"], "Option --shape is for a run with --topology (a ring has one shape): leave it out"),
    (["--topology", "2x4", "--shape", "vertical"],
     "Shape must be one of grid, flat, not 'vertical'"),
    (["--topology", "2x4", "--disable", "card1"],
     "Request must be a part and a number of steps like card1@40, node5@0 or link5:0@60, not 'card1'"),
    (["--topology", "2x4", "--disable", "rack1@40"],
     "Part must be like node5, card1 or link5:0, not 'rack1'"),
    (["--topology", "2x4", "--disable", "card2@40"],
     "After step 40, disable card2: Card must be below 2 on a 2 x 4 grid, not 2"),
    (["--topology", "2x4", "--disable", "node4@0,link9:0@0"],
     "Before step 1, disable node4 and disable link9:0: Link must be one of the 2 x 4 grid, not link9:0"),
    (["--topology", "2x4", "--disable", "card1@40", "--enable", "card0@80"],
     "After step 80, enable card0: card0 must be disabled to be enabled; card1 is"),
    (["--topology", "2x4", "--enable", "node9@8"],
     "After step 8, enable node9: Node must be below 8 on a 2 x 4 grid, not 9"),
    (["--topology", "2x4", "--disable", "card1@40,card1@50"],
     "After step 50, disable card1: card1 must be enabled to be disabled, and is disabled already"),
    (["--topology", "2x4", "--disable", "card0@3,card1@3"],
     "After step 3, disable card0 and disable card1: Grid must have an enabled node, not none: enable a node or a "
     "card"),
    (["--topology", "2x4", "--disable", "link5:0@60,link5:1@60"],
     "After step 60, disable link5:0 and disable link5:1: Enabled links must lead round through all enabled nodes, "
     "not without link5:0 and link5:1: enable link5:0 or link5:1, or disable node5"),
    (["--topology", "2x4", "--shape", "grid", "--disable", "node5@60"],
     "After step 60, disable node5: Rows of a sum in two dimensions must have enabled nodes in the same columns, not "
     "without node5: enable them, disable the others of their rows or columns, or take a flat ring"),
    (["--topology", "2x4", "--steps", 50, "--disable", "card1@50"],
     "Request to disable card1 must be after at most 49 of the run's 50 steps, so that a step follows, not after 50"),
    (["--topology", "2x4", "--overlap", "layers"],
     "Option --overlap is for a run without --topology (a program and its buffers are made for one ring): leave it "
     "out"),
    (["--topology", "2x4", "--compute", "node"],
     "Option --compute node is for a run without --topology (a program and its buffers are made for one ring): leave "
     "it out"),
    (["--topology", "1x2", "--board", "ulx3s-85f"],
     "Option --topology is for --board simulated, or a run without --board, not ulx3s-85f (a board's nodes have a "
     "fixed configuration): leave it out"),
    (["--topology", "2x2", "--device", "/dev/ttyUSB0"],
     "Option --topology is for --transport verilated, messages, pysim, golden or board, not serial, which --device "
     "implies (a board has no switches): leave it out"),
    (["--topology", "2x4", "--transport", "board"], "Ring must have between 1 and 4 nodes, not 8"),
    (["--topology", "2x2", "--transport", "board", "--faults", "1e-4"],
     "Option --faults is for a run without --board, which --transport implies (a board's nodes have a fixed "
     "configuration): leave it out"),
])
def test_errors_in_one_line(run, arguments, message):
    assert run("train", *arguments) == (1, "", f"error: {message}\n")
