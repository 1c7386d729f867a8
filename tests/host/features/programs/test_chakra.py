"""Execution traces: encoding of files, and predicted and measured traces that are written and read."""

import pytest

from host.features.programs import chakra, measured
from host.features.programs.chakra import Command, Kind
from host.labs.predict.model import Step, model_of, predict
from host.models.layer_shapes import layers_of

pytest.importorskip("google.protobuf")


def read(path):
    """Read the metadata and the nodes of a trace file."""
    data, messages = path.read_bytes(), []
    while data:
        size = next(size for size in range(1, len(data)) if data[size - 1] < 0x80)
        length = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(data[:size]))
        assert len(data) >= size + length
        messages.append(data[size:size + length])
        data = data[size + length:]
    schema = chakra._schema()
    return schema.GlobalMetadata.FromString(messages[0]), [schema.Node.FromString(node) for node in messages[1:]]


def test_bytes(tmp_path):
    """Field numbers and types in the file match the protobuf schema."""
    command = Command(name="sum", kind=Kind.REDUCE_SCATTER, start=3000, end=303_000, elements=5, size=300)
    path = chakra.write([[command]], tmp_path / "one", clock=1e6, note="n")
    assert path == tmp_path / "one.0.et"

    def field(number, content):
        if isinstance(content, int):
            return bytes([*chakra._varint(number << 3), *chakra._varint(content)])
        return bytes([*chakra._varint(number << 3 | 2), *chakra._varint(len(content)), *content])

    def attribute(name, number, content):
        return field(10, field(1, name) + field(number, content))

    node = (field(2, b"sum") + field(3, 7) + field(6, 3000) + field(7, 300_000) + attribute(b"is_cpu_op", 27, 0)
            + attribute(b"comm_type", 9, 7) + attribute(b"comm_size", 9, 300) + attribute(b"elements", 13, 5)
            + attribute(b"cycles", 13, 300_000))
    metadata = field(1, b"0.0.4") + field(2, field(1, b"source") + field(29, b"n"))
    expected = b"".join(chakra._varint(len(text)) + text for text in (metadata, node))
    assert path.read_bytes() == expected


@pytest.mark.parametrize(("number", "text"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")])
def test_lengths(number, text):
    assert chakra._varint(number) == text


@pytest.mark.parametrize("schedule", ["none", "layers", "strict"])
def test_predictions_are_read_back(tmp_path, schedule):
    prediction = predict(model_of("32,16,10"), "mx9", Step(overlap=schedule), nodes=3, latency=16, clock=1e6)
    chakra.write([prediction.commands] * 3, tmp_path / "trace", clock=1e6, note="a prediction")
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == [f"trace.{rank}.et" for rank in range(3)]
    for path in paths:
        metadata, nodes = read(path)
        assert metadata.version == "0.0.4"
        assert metadata.attr[0].string_val == "a prediction"
        assert [node.name for node in nodes] == [command.name for command in prediction.commands]
        names = {node.id: node.name for node in nodes}
        ends = {command.name: command.end for command in prediction.commands}
        words = 0
        for node, command in zip(nodes, prediction.commands, strict=True):
            attributes = {item.name: getattr(item, item.WhichOneof("value")) for item in node.attr}
            assert attributes["is_cpu_op"] is False
            assert (node.start_time_micros, node.duration_micros) == (command.start, command.end - command.start)
            assert attributes["cycles"] == command.end - command.start
            assert tuple(names[number] for number in node.data_deps) == command.after
            assert all(ends[name] <= command.start for name in command.after)
            assert (node.type == 4) == (command.kind is Kind.COMPUTE) == ("comm_type" not in attributes)
            if command.kind is not Kind.COMPUTE:
                assert attributes["comm_type"] == command.kind.value
                hops = 4 if command.kind is Kind.ALL_REDUCE else 2
                words += round(attributes["comm_size"] / 4 * hops / 3)
        assert words == prediction.words
        assert {name.split()[0] for name in names.values()} >= {"forward", "backward", "update"}


@pytest.mark.parametrize("strict", [False, True])
def test_measured_steps(tmp_path, strict):
    """The traces of a run with two layers contain the times measured on two nodes."""
    rows = [[0, 0, "forward 1", 0, 10, 0, 0], [0, 0, "forward 2", 12, 20, 0, 1], [0, 0, "backward 2", 22, 40, 0, 2],
            [0, 1, "sum 2" if strict else "update 2", 42, 70, 0, 1], [0, 0, "backward 1", 44, 60, 0, 3],
            [0, 1, "update" if strict else "update 1", 72, 90, 0, 2]]
    timeline = [[node, queue, name, start + node, end + node, *rest] for node in (0, 1)
                for _, queue, name, start, end, *rest in rows]
    report = {"compute": "modelled", "schedules": [
        {"schedule": "strict" if strict else "layers", "timeline": timeline}]}
    paths = measured.write_traces(report, layers_of((30, 20, 10)), tmp_path / "run", nodes=2)
    assert paths == [tmp_path / "run.0.et"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.0.et", "run.1.et"]
    _, nodes = read(tmp_path / "run.1.et")
    names = {node.id: node.name for node in nodes}
    after = {node.name: {names[number] for number in node.data_deps} for node in nodes}
    first, last = ("sum 2", "update") if strict else ("update 2", "update 1")
    assert after == {"forward 1": set(), "forward 2": {"forward 1"}, "backward 2": {"forward 2"},
                     first: {"backward 2"}, "backward 1": {"backward 2"}, last: {first, "backward 1"}}
    sizes = {node.name: {item.name: item.int64_val for item in node.attr}.get("comm_size") for node in nodes}
    assert sizes[first] == 4 * 224
    assert sizes[last] == (None if strict else 4 * 640)


def test_steps_without_cycles(tmp_path):
    """A step with a schedule but no timeline writes no trace."""
    report = {"compute": "modelled", "schedules": [{"schedule": "strict", "timeline": None}]}
    assert measured.write_traces(report, layers_of((30, 20, 10)), tmp_path / "run", nodes=1) == []
    assert list(tmp_path.iterdir()) == []


def test_nothing_installed(monkeypatch):
    monkeypatch.setattr(chakra.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^Protocol Buffers must be installed for execution traces: pip install "):
        chakra.needed()
