"""Classes of flips by their effect, and a table of them by unit."""

import collections

from rich.console import Console
from rich.table import Table

__all__ = ["COLUMNS", "effect", "is_right_node", "show", "unit"]

#: Effects of a flip. Found are those from WRONG_SUM to "other".
COLUMNS = ("no effect", "WRONG_SUM", "BAD_CRC", "refused", "time-out", "other", "silent")
_REFUSED = ("WRONG_COLLECTIVE", "WRONG_BLOCK", "WRONG_LENGTH", "WRONG_SEQUENCE", "WRONG_SOURCE", "WRONG_CODEC")
_TIME_OUTS = ("INGRESS_TIMEOUT", "EGRESS_TIMEOUT")


#: Stages of a sum, and the units of each. All other units are control.
_STAGES = {
    "before the integers": ("exponents", "sums.reader", "sums.narrower", "sums.fields", "sums.quantizer"),
    "sums of integers": ("sums.adder", "sums.field_hash", "sums.fields_demux", "sums.gate", "sums.own_fields",
                         "sums.own_hash", "sums.places", "sums.to_add", "sums.to_send", "sums.total_demux",
                         "sums.used_hashes"),
    "complete sums, weights": ("sums", "masters", "to_forward", "weight_codec", "weights", "write_back"),
    "packets": ("arriving", "depacketizer", "link", "packetizer", "received"),
}


def unit(path):
    """Unit of a path: a child of the engine, of its datapath, or of the part of the datapath that sums integers."""
    names = path.split(".")[1:-1]
    if names[:1] == ["datapath"] and len(names) > 1:
        names = names[1:]
    return ".".join(names[:2] if names[:1] == ["sums"] else names[:1]) or "engine"


def _stage(name):
    return next((stage for stage, units in _STAGES.items() if name in units or name.split(".")[0] in units), "control")


def effect(result):
    """Effect of a flip, one of :data:`COLUMNS`."""
    failure = result["failure"]
    if failure is None:
        return "silent" if result["wrong"] else "no effect"
    if isinstance(failure, str):
        return "other"
    statuses = [event[0] for event in failure if event]
    for name in ("WRONG_SUM", "BAD_CRC"):
        if name in statuses:
            return name
    for name, members in (("refused", _REFUSED), ("time-out", _TIME_OUTS)):
        if any(status in members for status in statuses):
            return name
    return "other"


def is_right_node(result):
    """Whether the first node with WRONG_SUM, in the order of ranks, names the node in which the bit flipped."""
    detail = next(event[1] for event in result["failure"] if event and event[0] == "WRONG_SUM")
    return detail >> 24 == result["node"]


def show(results):
    """Print numbers of flips by stage, unit and effect."""
    table = Table("unit", "flips", *COLUMNS, "right node", "wrong, found", title="flipped bits")
    stages = collections.defaultdict(lambda: collections.defaultdict(list))
    for result in results:
        name = unit(result["path"])
        stages[_stage(name)][name].append(result)
    for stage in [*_STAGES, "control"]:
        for name, of_unit in sorted(stages[stage].items()):
            table.add_row(name, *_numbers(of_unit))
        of_stage = [result for of_unit in stages[stage].values() for result in of_unit]
        table.add_row(f"all: {stage}", *_numbers(of_stage))
        table.add_section()
    table.add_row("all", *_numbers(results))
    Console(width=140).print(table)


def _numbers(results):
    """Numbers of flips, of each effect, of right nodes, and of wrong elements that were written before an event."""
    counts = collections.Counter(map(effect, results))
    named = sum(is_right_node(result) for result in results if effect(result) == "WRONG_SUM")
    written = sum(result["failure"] is not None and any(neither for _, neither in result["wrong"].values())
                  for result in results)
    return [f"{number:,}" if number else "-" for number in (
        len(results), *(counts[column] for column in COLUMNS), named, written)]
