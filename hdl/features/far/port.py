"""Port to a far memory, which is larger and slower than a node's memories and has its own link."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["far_signature"]


def far_signature(rows, lanes):
    """Port to a far memory, as seen by a node.

    A request is taken when ``valid`` and ``ready`` are high; requests take effect in the order in which they are
    taken. Each read is answered later, in order, after any number of cycles; answers cannot be stalled, so a node
    only requests rows for which it has room. A waiting request may be withdrawn.

    Parameters
    ----------
    rows : int
        Number of rows of the far memory.
    lanes : int
        Number of elements per row.

    Members
    -------
    valid : Out(1)
    ready : In(1)
    write : Out(1)
        Write the row; if low, read it.
    row : Out(range(rows))
    keep : Out(lanes)
        Elements to write.
    elements : array of Out(32)
    response : In(1)
        An answer arrives in this cycle.
    answer : array of In(32)
    """
    return wiring.Signature({
        "valid": Out(1), "ready": In(1), "write": Out(1), "row": Out(range(rows)), "keep": Out(lanes),
        "elements": Out(32).array(lanes), "response": In(1), "answer": In(32).array(lanes)})
