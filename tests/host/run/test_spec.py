"""Run descriptions: written and read as text, TOML and JSON, and rejected if they are invalid."""

import json
import random
import tomllib
from pathlib import Path

import pytest

from host.features.programs.schedule_section import Program
from host.features.quorum.schedule_section import Quorum
from host.run.defaults import with_defaults, without_defaults
from host.run.sections import Optimizer, Update, Workload
from host.run.spec import RunSpec, SpecError, from_dict, paths_of, read, repeatable, to_dict, to_toml, with_texts
from host.training.optimizers import OptimizerName
from tests.run_pairs.drawing import FIELDS, pairs


def drawn(count, seed=5):
    """Draw random run descriptions, leaving out combinations of fields of different schedules."""
    for _, values in pairs(random.Random(seed), count):
        try:
            yield RunSpec().replace(dict(values))
        except SpecError:
            continue


def test_in_and_out():
    """A run description stays the same when it is converted to TOML or JSON and back."""
    count = 0
    for spec in drawn(300):
        assert from_dict(tomllib.loads(to_toml(spec))) == from_dict(repeatable(spec))
        assert from_dict(json.loads(json.dumps(to_dict(spec)))) == spec
        count += 1
    assert count > 200


def test_every_field(tmp_path):
    """Every value of every field of a run description can be written and read back."""
    for path, values in FIELDS.items():
        for value in values:
            spec = RunSpec().replace({path: value})
            (tmp_path / "run.toml").write_text(to_toml(spec))
            assert read(tmp_path / "run.toml") == from_dict(repeatable(spec))
            assert from_dict(to_dict(spec)) == spec
            if path != "schedule.kind" and spec.value(path) != RunSpec().value(path):
                assert spec.given(path)
                section, _, name = path.partition(".")
                assert name in to_dict(spec)[section]


def test_defaults_are_left_out():
    assert to_dict(RunSpec()) == {}
    assert to_dict(RunSpec(schedule=Update())) == {"schedule": {"kind": "update"}}
    assert to_dict(RunSpec(workload=Workload(seed=0), optimizer=Optimizer(momentum=0.9))) == {
        "optimizer": {"momentum": 0.9}}


def test_defaults():
    """Adding defaults to a run description keeps explicit values, and has no effect the second time."""
    for spec in drawn(300, seed=6):
        full = with_defaults(spec)
        assert with_defaults(full) == full
        for section, fields in to_dict(spec).items():
            assert fields.items() <= to_dict(full)[section].items()
        assert from_dict(to_dict(full)) == full


def test_without_defaults():
    """A complete run description, as in a report, can be modified once its defaults have been removed."""
    for spec in drawn(100, seed=7):
        full = with_defaults(spec)
        short = without_defaults(full)
        assert with_defaults(short) == full
        assert set(paths_of(short)) <= set(paths_of(full))
    adam = with_texts(without_defaults(with_defaults(RunSpec())), ["optimizer.rule=adam"])
    assert to_dict(adam) == {"optimizer": {"rule": "adam"}}
    assert to_dict(without_defaults(with_defaults(with_texts(RunSpec(), ["optimizer.momentum=0.5"])))) == {
        "optimizer": {"momentum": 0.5}}


@pytest.mark.parametrize(("texts", "path", "value"), [
    ([], "optimizer.rule", OptimizerName.MOMENTUM), (["workload.name=text"], "optimizer.rule", OptimizerName.ADAM),
    ([], "workload.epochs", 14), (["workload.name=text"], "workload.steps", 200),
    (["backend.transport=board"], "workload.epochs", 1), (["backend.board=icebreaker"], "ring.nodes", 1),
    (["ring.topology=2x4"], "ring.nodes", 8), (["schedule.straggler=3:2"], "workload.batch", 16),
    (["schedule.straggler=3:2"], "schedule.quorum", 3), (["schedule.jobs=2"], "ring.nodes", 8),
    (["compute.on=node"], "schedule.overlap", "none"), (["compute.on=node", "formats.density=0.1"], "schedule.kind",
                                                        "update"),
    (["schedule.kind=streaming"], "workload.steps", 6),
])
def test_known_defaults(texts, path, value):
    assert with_defaults(with_texts(RunSpec(), texts)).value(path) == value


def test_schedules():
    """A field of a schedule selects this schedule; fields of two different schedules are rejected."""
    assert RunSpec().schedule is None
    assert with_defaults(RunSpec()).schedule == Update()
    assert with_texts(RunSpec(), ["schedule.overlap=layers"]).schedule == Program(overlap="layers")
    spec = with_texts(RunSpec(schedule=Quorum(straggler="1:2")), ["schedule.quorum=2"])
    assert spec.schedule == Quorum(straggler="1:2", quorum=2)
    assert with_texts(spec, ["schedule.kind=update"]).schedule == Update()
    with pytest.raises(SpecError, match=r"^Option --overlap is for a run without --straggler: leave it out$"):
        with_texts(RunSpec(), ["schedule.straggler=1:2", "schedule.overlap=layers"])


@pytest.mark.parametrize(("text", "message"), [
    ("optimizer=adam", "Assignment must be section.field=value, such as optimizer.rule=adam, not 'optimizer=adam'"),
    ("optimizer.rule", "Assignment must be section.field=value, such as optimizer.rule=adam, not 'optimizer.rule'"),
    ("optimiser.rule=adam", "Section must be one of workload, model, ring, backend, optimizer, formats, compute, "
                            "schedule, faults, output, not 'optimiser': did you mean optimizer?"),
    ("optimizer.rul=adam", "Field of optimizer must be one of rule, learning_rate, momentum, dampening, "
                           "weight_decay, clip, moments, not 'rul': did you mean rule?"),
    ("optimizer.rule=adm", "Field optimizer.rule must be one of sgd, momentum, nesterov, adam, adamw, not 'adm': did "
                           "you mean adam or adamw?"),
    ("workload.steps=x", "Field workload.steps must be an integer, not 'x'"),
    ("workload.steps=1.5", "Field workload.steps must be an integer, not '1.5'"),
    ("optimizer.clip=x", "Field optimizer.clip must be a number, not 'x'"),
    ("output.resume=maybe", "Field output.resume must be true or false, not 'maybe'"),
    ("schedule.kind=quorums", "Schedule must be one of update, program, quorum, streaming, side-by-side, not "
                              "'quorums': did you mean quorum?"),
])
def test_wrong_texts(text, message):
    with pytest.raises(SpecError) as caught:
        with_texts(RunSpec(), [text])
    assert str(caught.value) == message


@pytest.mark.parametrize(("name", "content", "message"), [
    ("run.toml", "steps = 3\n", "Section must be one of workload"),
    ("run.toml", "workload = 3\n", "Section workload must be a table of fields, not 3"),
    ("run.toml", "[workload]\nsteps = true\n", "Field workload.steps must be an integer, not True"),
    ("run.toml", "[workload\n", "Expected ']' at the end of a table declaration"),
    ("run.toml", b"\xff", "'utf-8' codec can't decode"),
    ("report.json", "{}", "it has no description of one, as the report of a gradring train of this version"),
    ("report.json", "[]", "it has no description of one"),
    ("report.json", "{", "report.json"),
    ("report.json", '{"run": {"workload": {"steps": "3"}}}', "Field workload.steps must be an integer, not '3'"),
])
def test_wrong_files(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SpecError) as caught:
        read(path)
    text = str(caught.value)
    assert text.startswith(f"{path} describes no run: ")
    assert message in text
    assert "\n" not in text


def test_missing_file():
    with pytest.raises(FileNotFoundError):
        read(Path("no-such-file.toml"))
