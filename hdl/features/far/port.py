"""Port of a far memory, which is larger and slower than a node's memories and has its own link."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["far_signature"]


def far_signature(rows, lanes):
    """Port of a far memory, as seen by a node.

    A request is taken when ``valid`` and ``ready`` are high, and requests take effect in the order taken. Each read
    is answered later, in order, after any number of cycles; answers cannot be refused, so a node
    requests only rows that it has room for. A request that waits may be withdrawn.

    Parameters
    ----------
    rows : int
        Rows of the far memory.
    lanes : int
        Elements in a row.

    Members
    -------
    valid : Out(1)
    ready : In(1)
    write : Out(1)
        Write the row; otherwise read it.
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
