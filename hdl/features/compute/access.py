"""Ports of the compute engine's units, for jobs and for reading and writing memory rows."""

from amaranth.hdl import Cat, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.floating.format import FP32

__all__ = ["memory_of", "owner_of", "place_of", "place_operands", "place_shape", "request_layout", "response_layout",
           "unit_members", "write_layout"]

#: Width in bits of a memory number.
_MEMORY_BITS = 2


def place_shape(owner_bits=0):
    """Shape of ``place`` fields: the memory (:class:`~hdl.features.compute.layer_list.Place`) in the low bits and,
    with buffer tags, the operand's buffer number in the bits above. Units pass these fields through unchanged.
    """
    return unsigned(_MEMORY_BITS + owner_bits)


def memory_of(operand):
    """Memory number in a ``place`` field."""
    return operand[:_MEMORY_BITS]


def owner_of(operand):
    """Buffer number in a ``place`` field."""
    return operand[_MEMORY_BITS:]


def place_of(operand):
    """Return the ``place`` field of an operand in a checked list: memory number and buffer number."""
    return Cat(memory_of(operand.place), operand.owner)


def request_layout(rows, owner_bits=0):
    """Payload of a read request: a place (:func:`place_shape`) and a row in its memory.

    Parameters
    ----------
    rows : int
        Rows of the largest memory.
    owner_bits : int
        Bits of a buffer number; 0 without buffer tags.
    """
    return data.StructLayout({"place": place_shape(owner_bits), "row": range(rows)})


def response_layout(lanes):
    """Payload of a read response: the elements of a row. Responses arrive in request order."""
    return data.StructLayout({"elements": data.ArrayLayout(unsigned(FP32.width), lanes)})


def write_layout(rows, lanes, owner_bits=0):
    """Payload of a write: a row, its elements, and a write enable per element."""
    return data.StructLayout({
        "place": place_shape(owner_bits), "row": range(rows),
        "elements": data.ArrayLayout(unsigned(FP32.width), lanes), "keep": lanes})


def unit_members(job, *, lanes, memory_rows, owner_bits=0):
    """Return the members of a unit that operates on operands in memory, keyed by name.

    Parameters
    ----------
    job : StructLayout
        Payload of the unit's jobs.
    lanes : int
    memory_rows : int
        Rows of the largest memory.
    owner_bits : int
        Bits of a buffer number; 0 without buffer tags.

    Members
    -------
    job : In(stream of job)
    request : Out(stream of request_layout(memory_rows, owner_bits))
    response : In(stream of response_layout(lanes))
    write : Out(stream of write_layout(memory_rows, lanes, owner_bits))
    settled : In(1)
        All accepted writes are in their memories.
    done : Out(1)
        The job has ended.
    """
    return {
        "job": In(stream.Signature(job)),
        "request": Out(stream.Signature(request_layout(memory_rows, owner_bits))),
        "response": In(stream.Signature(response_layout(lanes))),
        "write": Out(stream.Signature(write_layout(memory_rows, lanes, owner_bits))),
        "settled": In(1),
        "done": Out(1),
    }


def place_operands(m, job, instruction, names, bases, *, lanes):
    """Assign memory and first row of each operand of a job.

    Parameters
    ----------
    m : Module
    job, instruction : View
        Job, and the fields of its instruction.
    names : sequence of str
        Operand names, in the order they are checked.
    bases : sequence of Value
        Operand addresses; excess addresses are ignored.
    lanes : int
    """
    for name, base in zip(names, bases, strict=False):
        m.d.comb += [job[name].place.eq(place_of(instruction[name])), job[name].row.eq(base >> exact_log2(lanes))]
