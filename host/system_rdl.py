"""The registers of a node in SystemRDL 2.0, for tools that make documents, headers and drivers of it.

``make registers`` has PeakRDL make HTML pages and a C header of docs/registers.rdl.
"""

from hdl.control.registers import REGISTERS, SLOT_REGISTERS, TENANT_REGISTERS, Access, Field, Kind, Register

__all__ = ["system_rdl"]

_INTRODUCTION = """\
// Made by `python -m host.documents` from the table in hdl/control/registers.py. Do not edit.
//
// Addresses count bytes here; packets of the host port count 32-bit words, four bytes each.

"""

_ACCESS = {
    Access.CONSTANT: "sw = r; hw = w;",
    Access.STATUS: "sw = r; hw = w;",
    Access.COUNTER: "sw = r; hw = w;",
    Access.SETTING: "sw = rw; hw = r;",
    Access.RESTORED: "sw = r; hw = w;",
    Access.SET: "sw = rw; hw = rw; onwrite = woset;",
}

_KINDS = {Kind.FLOAT32: " A number of binary32.", Kind.UINT: "", Kind.BITFIELD: ""}


def _text(text: str) -> str:
    """A string literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _field(name: str, bit: int, width: int, doc: str, access: str, reset: int | None) -> str:
    value = "" if reset is None else f" = {width}'h{reset:x}"
    about = f"desc = {_text(doc)}; " if doc else ""
    return f"        field {{ {about}{access} }} {name}[{bit + width - 1}:{bit}]{value};"


def _fields(entry: Register) -> list[str]:
    fields = entry.fields or (Field(name="value", bit=0, width=entry.width, doc=""),)
    found = []
    for field in fields:
        access = "sw = w; hw = r; singlepulse;" if field.pulse else _ACCESS[entry.access]
        reset = None
        if entry.access.writable:
            reset = entry.reset >> field.bit & (1 << field.width) - 1
        found.append(_field(field.name, field.bit, field.width, field.doc, access, reset))
    return found


def system_rdl() -> str:
    """The text of docs/registers.rdl."""
    lines = ["addrmap gradring_node {", '    name = "gradring node";',
             '    desc = "Registers of a node, as docs/registers.md has them.";', "    default regwidth = 32;", ""]
    for entry in (*REGISTERS, *TENANT_REGISTERS, *SLOT_REGISTERS):
        lines += ["    reg {", f"        name = {_text(entry.name)};",
                  f"        desc = {_text(entry.doc + _KINDS[entry.kind])};", *_fields(entry),
                  f"    }} {entry.name} @ 0x{4 * entry.address:03x};", ""]
    return _INTRODUCTION + "\n".join([*lines[:-1], "};"]) + "\n"
