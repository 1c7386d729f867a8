"""Couplings between options of a run: each is tested, and random pairs of options either run or are rejected."""

import pytest

from host.run import couplings
from host.run.coupling import Coupling, Except
from host.run.couplings import COUPLINGS
from host.run.defaults import with_defaults
from host.run.sections import SCHEDULES, flag
from host.run.spec import RunSpec
from host.transports.session import TransportName
from tests.present import needs
from tests.run_pairs.drawing import CONTEXTS, FIELDS, tried

SEED = 20


def tries(coupling):
    """For a coupling, yield run descriptions that set its option together with each value of the option on which it
    depends."""
    value = FIELDS[coupling.option][-1] if coupling.value is None else coupling.value
    options = (coupling.other,) if isinstance(coupling.other, str) else coupling.other
    for other in options:
        for second in (None, *(TransportName if other == "backend.transport" else FIELDS[other])):
            values = {**dict([] if coupling.context is None else [coupling.context]),
                      **({other: second} if second is not None else {})}
            for context in ({}, CONTEXTS.get(coupling.option, {})):
                try:
                    yield RunSpec().replace({**context, **values, coupling.option: value})
                except ValueError:  # fields of two different schedules
                    continue


@pytest.mark.parametrize("coupling", COUPLINGS, ids=lambda coupling: f"{coupling.option} {coupling.other}")
def test_each(coupling):
    """Each coupling rejects some values with a message of its own, and accepts all other values."""
    refused = [spec for spec in tries(coupling) if coupling.violated(spec, with_defaults(spec))]
    assert refused
    assert len(refused) < len(list(tries(coupling)))
    for spec in refused:
        with pytest.raises(ValueError, match=r"^Option --[a-z-]+.* is for .*: leave it out$"):
            couplings.check(spec)
    message = coupling.message(refused[0], with_defaults(refused[0]))
    assert message.startswith(f"Option {coupling.left} is for {coupling.condition}")
    assert f"({coupling.reason})" in message


def test_values_of_missing_features():
    """If all values that a coupling excludes belong to missing features, the coupling allows every run."""
    coupling = Coupling("ring.topology", "formats.gradients", Except(()), "no value is excluded")
    assert coupling.condition == "any run"
    spec = RunSpec().replace({"ring.topology": "2x4"})
    assert not coupling.violated(spec, with_defaults(spec))


def test_number():
    """This test fixes the number of couplings, so that adding one is a deliberate change."""
    assert len(COUPLINGS) == 78
    assert len({(coupling.option, coupling.other, coupling.value) for coupling in COUPLINGS}) == len(COUPLINGS)


def test_nothing_excluded():
    """A coupling allows every run if none of the values it excludes exist in this copy of the repository."""
    coupling = Coupling("ring.topology", "formats.gradients", Except(()), "there is none")
    assert coupling.condition == "any run"
    spec = RunSpec().replace({"ring.topology": "2x2"})
    assert not coupling.violated(spec, with_defaults(spec))


@pytest.mark.parametrize(("options", "text"), [
    ({"formats.gradients": "sum32"}, "a run without --gradients sum32 or sum16, not sum32"),
    ({"formats.weights": "table32"}, "a run without --weights table32, centroid16 or centroid64, not table32"),
    ({"compute.on": "node"}, "a run without --compute node")])
def test_traces_of_golden_nodes(options, text):
    """Execution traces of golden nodes are rejected for runs without modelled cycles, and only for them."""
    needs("reproducible", "table", "codebook", what="Formats without modelled cycles")
    traced = {"output.chakra": "trace", "schedule.overlap": "layers"}
    golden = {**traced, "backend.transport": TransportName.GOLDEN}
    for allowed in ({**traced, **options}, {**golden, "formats.gradients": "mx9", "formats.weights": "mx9"}):
        couplings.check(RunSpec().replace(allowed))
    with pytest.raises(ValueError, match=r"^Option --chakra ") as caught:
        couplings.check(RunSpec().replace({**golden, **options}))
    assert str(caught.value) == (f"Option --chakra with --transport golden is for {text} (cycles "
                                 f"unknown): leave it out")


#: Options accepted by each schedule that has its own training loop.
APPLICABLE = {kind: schedule.applicable for kind, schedule in SCHEDULES.items() if schedule.applicable is not None}


@pytest.mark.parametrize("kind", APPLICABLE)
def test_schedules(kind):
    """A schedule with its own training loop accepts its options; for any other option, the error names both."""
    lead = {"quorum": {"schedule.straggler": "1:2"}, "streaming": {"schedule.kind": "streaming"},
            "side-by-side": {"schedule.jobs": 2, "ring.links": "slots"}}[kind]
    for path, values in FIELDS.items():
        if path.startswith("schedule.") or "schedule.overlap" in CONTEXTS.get(path, ()):
            continue
        if values[-1] == RunSpec().value(path):
            continue
        spec = RunSpec().replace({**lead, **CONTEXTS.get(path, {}), path: values[-1]})
        if path in APPLICABLE[kind]:
            continue
        with pytest.raises(ValueError, match=r"leave it out$") as caught:
            couplings.check(spec)
        needed = [flag(name) for name in (path, *CONTEXTS.get(path, ()))]
        assert any(f"Option {name} is for a run without " in str(caught.value) for name in needed), str(caught.value)


def test_fields():
    """Lists of fields name only fields that exist."""
    for fields in APPLICABLE.values():
        assert set(fields) <= set(FIELDS)
    assert set(CONTEXTS) <= set(FIELDS)
    assert set(SCHEDULES) == {"update", "program", "quorum", "streaming", "side-by-side"}


def test_pairs(tmp_path, monkeypatch):
    """Random pairs of options are either accepted or rejected with one line that names both options."""
    monkeypatch.chdir(tmp_path)
    outcomes = [outcome for _, _, outcome in tried(SEED, 60)]
    assert [outcome for outcome in outcomes if outcome not in ("passed", "refused")] == []
    assert {"passed", "refused"} <= set(outcomes)
