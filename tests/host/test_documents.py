from hdl.control.registers import REGISTERS
from host import documents


def test_documents_are_up_to_date():
    assert documents.check() == []


def test_check_finds_what_is_stale(tmp_path):
    assert documents.check(tmp_path) == ["docs/registers.md"]
    documents.write(tmp_path)
    assert documents.check(tmp_path) == []
    with (tmp_path / "docs/registers.md").open("a") as file:
        file.write("more\n")
    assert documents.check(tmp_path) == ["docs/registers.md"]


def test_every_register_and_field_is_in_the_map():
    text = documents.register_map()
    for entry in REGISTERS:
        assert f"| 0x{entry.address:02x} | `{entry.name}` |" in text
        assert entry.doc in text
        for field in entry.fields:
            assert f"| `{field.name}` | {field.doc} |" in text


def test_command_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(documents, "write", lambda: None)
    assert documents.main([]) == 0
    assert documents.main(["--check"]) == 0
    monkeypatch.setattr(documents, "check", lambda: ["docs/registers.md"])
    assert documents.main(["--check"]) == 1
    assert "docs/registers.md is stale: run `python -m host.documents`" in capsys.readouterr().err
    assert documents.main(["--chekc"]) == 2
    assert "usage" in capsys.readouterr().err
