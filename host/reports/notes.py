"""Notes to reports: what their cycles are those of."""

from host.reports.page import Note
from host.transports.session import TransportName

__all__ = ["NOT_MODELLED", "NO_WITNESS", "count_text", "ratio_text", "simulation_notes"]

#: What a report shows in place of cycles without a model.
NOT_MODELLED = "not modelled"

#: The verdict of a run on golden nodes.
NO_WITNESS = "Computed by the golden model: no second witness."

_CYCLES = {
    TransportName.VERILATED: "Cycles are those of a simulation, cycle by cycle, of the Verilog that is synthesised "
                             "for boards; no board has taken part.",
    TransportName.MESSAGES: "Cycles are those of a simulation, cycle by cycle, of the Verilog that is synthesised "
                            "for boards, of which node 0 alone has a host; no board has taken part.",
    TransportName.PYSIM: "Cycles are those of a simulation of the gateware by Amaranth's simulator; no board has "
                         "taken part.",
    TransportName.BOARD: "The board and its serial port are simulated; cycles are those of the simulated nodes.",
    TransportName.GOLDEN: "Golden models have computed all values and words, and no gateware has taken part. Cycles "
                          "are modelled, as gradring predict models them.",
    TransportName.SERIAL: "Cycles are those that the nodes on the board have counted.",
}


def count_text(count: float | None, per: float = 1) -> str:
    """A count, such as cycles, or its mean ``per`` so many steps."""
    return NOT_MODELLED if count is None else f"{count / per:,.0f}"


def ratio_text(part: float | None, whole: float) -> str:
    """Share of a count in another one."""
    return NOT_MODELLED if part is None else f"{part / whole:.3f}" if whole else "-"


def simulation_notes(transport: TransportName, *, latency: int, arithmetic: str) -> list[Note]:
    """Notes on the simulation that figures come of.

    Parameters
    ----------
    transport : TransportName
    latency : int
        Cycles of each link.
    arithmetic : str
        How floating-point units were simulated.
    """
    found = [Note(_CYCLES[transport])]
    if transport in (TransportName.VERILATED, TransportName.MESSAGES, TransportName.PYSIM):
        found.append(Note(f"Links between nodes are modelled: a word, and a credit, arrives after {latency} cycles."))
    if arithmetic == "native":
        found.append(Note("Floating-point units are simulated by instructions of the computer, with the same bits "
                          "and cycles.", ("floating-point units",)))
    return found
