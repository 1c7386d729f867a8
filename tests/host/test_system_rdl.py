"""The registers in SystemRDL, as an independent compiler reads them."""

import subprocess
import sys

import pytest
import systemrdl

from hdl.control.registers import REGISTERS, Access
from host import documents

PATH = documents.ROOT / "docs" / "registers.rdl"


@pytest.fixture(scope="module")
def node():
    compiler = systemrdl.RDLCompiler()
    compiler.compile_file(str(PATH))
    return compiler.elaborate().top


def test_registers(node):
    found = {register.inst_name: register for register in node.registers()}
    assert list(found) == [entry.name for entry in REGISTERS]
    for entry in REGISTERS:
        register = found[entry.name]
        assert register.absolute_address == 4 * entry.address
        assert register.size == 4
        assert register.get_property("desc").startswith(entry.doc)


def test_fields(node):
    for entry, register in zip(REGISTERS, node.registers(), strict=True):
        expected = [(field.name, field.bit, field.width) for field in entry.fields] or [("value", 0, entry.width)]
        assert [(field.inst_name, field.low, field.width) for field in register.fields()] == expected
        value = 0
        for field in register.fields():
            assert field.is_sw_writable == entry.access.writable
            assert field.is_hw_writable == (entry.access is not Access.SETTING)
            value |= (field.get_property("reset") or 0) << field.low
        assert value == entry.reset


def test_special_fields(node):
    clear = node.get_child_by_name("CONTROL").get_child_by_name("clear_counters")
    assert clear.get_property("singlepulse")
    assert not clear.is_sw_readable
    flags = node.get_child_by_name("FLAGS").get_child_by_name("flags")
    assert flags.get_property("onwrite") == systemrdl.rdltypes.OnWriteType.woset


def test_header(tmp_path):
    """The C header has the addresses as members of a structure, which a compiler agrees with."""
    subprocess.run([sys.executable, "-m", "peakrdl", "c-header", str(PATH), "-o", "registers.h"], cwd=tmp_path,
                   check=True, capture_output=True)
    checks = "\n".join(f'static_assert(offsetof(gradring_node_t, {entry.name}) == {4 * entry.address}, "");'
                       for entry in REGISTERS)
    (tmp_path / "check.cpp").write_text(f'#include <cstddef>\n#include "registers.h"\n{checks}\nint main() {{}}\n')
    subprocess.run(["c++", "-std=c++17", "check.cpp", "-o", "check"], cwd=tmp_path, check=True)
