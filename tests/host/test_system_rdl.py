"""The SystemRDL description of the registers, read by an independent compiler."""

import subprocess
import sys

import pytest
import systemrdl

from hdl.control.registers import ALL_REGISTERS, Access
from host import documents
from host.make.targets import find_target

PATH = documents.ROOT / "docs" / "registers.rdl"


@pytest.fixture(scope="module")
def node():
    compiler = systemrdl.RDLCompiler()
    compiler.compile_file(str(PATH))
    return compiler.elaborate().top


def test_registers(node):
    registers = {register.inst_name: register for register in node.registers()}
    assert list(registers) == [entry.name for entry in ALL_REGISTERS]
    for entry in ALL_REGISTERS:
        register = registers[entry.name]
        assert register.absolute_address == 4 * entry.address
        assert register.size == 4
        assert register.get_property("desc").startswith(entry.doc)


def test_fields(node):
    for entry, register in zip(ALL_REGISTERS, node.registers(), strict=True):
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


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder with the files that `make registers` generates."""
    folder = tmp_path_factory.mktemp("registers")
    for program, *arguments in find_target("registers").commands({}):
        assert program == "peakrdl"
        arguments = [text.replace("docs/registers.rdl", str(PATH)) for text in arguments]
        subprocess.run([sys.executable, "-m", "peakrdl", *arguments], cwd=folder, check=True, capture_output=True)
    return folder / "build" / "registers"


def test_header(made):
    """A C compiler confirms that all registers and fields of the header have the addresses and bits of the table."""
    checks = [f'_Static_assert(offsetof(gradring_node_t, {entry.name}) == {4 * entry.address}, "");'
              for entry in ALL_REGISTERS]
    for entry in ALL_REGISTERS:
        for name, bit, width in ([(field.name, field.bit, field.width) for field in entry.fields]
                                 or [("value", 0, entry.width)]):
            prefix = f"GRADRING_NODE__{entry.name}__{name.upper()}"
            checks += [f'_Static_assert({prefix}_bp == {bit} && {prefix}_bw == {width}, "");',
                       f'_Static_assert({prefix}_bm == {(1 << width) - 1 << bit}u, "");']
    (made / "check.c").write_text("\n".join(["#include <stddef.h>", '#include "gradring_registers.h"', *checks,
                                             "int main(void) { return 0; }", ""]))
    compiled = subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "check.c", "-o", "check"], cwd=made,
                              capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr


def test_pages(made):
    """The HTML pages list every register."""
    assert (made / "html" / "index.html").is_file()
    data = "".join(path.read_text() for path in (made / "html").rglob("*.js*"))
    for entry in ALL_REGISTERS:
        assert entry.name in data
