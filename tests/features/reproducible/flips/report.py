"""Classification of bit flips by their effect, and a table of effects by unit."""

import collections

from rich.console import Console
from rich.table import Table

from tests.features.reproducible.flips.nodes import NODES

__all__ = ["COLUMNS", "STAGES", "effect", "is_drawn", "named", "show", "unit"]

#: Effects of a flip. The effects from WRONG_SUM to "other" mean that the flip was detected.
COLUMNS = ("no effect", "WRONG_SUM", "BAD_CRC", "refused", "time-out", "other", "silent")
_REFUSED = ("WRONG_COLLECTIVE", "WRONG_BLOCK", "WRONG_LENGTH", "WRONG_SEQUENCE", "WRONG_SOURCE", "WRONG_CODEC")
_TIME_OUTS = ("INGRESS_TIMEOUT", "EGRESS_TIMEOUT")


#: Stages of a sum, with the units that belong to each stage. All other units belong to the control stage.
_STAGES = {
    "before the integers": ("exponents", "sums.reader", "sums.narrower", "sums.fields", "sums.quantizer"),
    "sums of integers": ("sums.adder", "sums.arrived_hash", "sums.field_hash", "sums.fields_demux", "sums.gate",
                         "sums.gathered_fields", "sums.gathered_hashes", "sums.kept_hash", "sums.kept_hashes",
                         "sums.kept_sums", "sums.own_fields", "sums.places", "sums.rounded_field_hash",
                         "sums.rounded_fields", "sums.rounded_fields_mux", "sums.rounded_hash",
                         "sums.rounded_hash_mux", "sums.rounded_mux", "sums.to_add", "sums.to_round", "sums.to_send",
                         "sums.total_demux", "sums.total_hashes", "sums.used_hashes"),
    "rounding, weights": ("sums", "masters", "to_forward", "weight_codec", "weights", "write_back"),
    "packets": ("arriving", "depacketizer", "link", "packetizer", "received"),
}
_CONTROL = "control"

#: Names of the stages, as shown in the table.
STAGES = (*_STAGES, _CONTROL)


def unit(path):
    """Unit that contains a path: a child of the engine, of its datapath, or of the datapath's summing unit."""
    names = path.split(".")[1:-1]
    if names[:1] == ["datapath"] and len(names) > 1:
        names = names[1:]
    return ".".join(names[:2] if names[:1] == ["sums"] else names[:1]) or "engine"


def _stage(name):
    part = name.split(".")[0]
    return next((stage for stage, units in _STAGES.items() if name in units or part in units), _CONTROL)


def is_drawn(path, only):
    """Whether ``only`` selects a path: it names the path's stage or, if no stage has this name, is a part of the
    path.
    """
    return _stage(unit(path)) == only if only in STAGES else only in path


def effect(result):
    """Effect of a flip, as one of :data:`COLUMNS`."""
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


def named(result):
    """Return whether a WRONG_SUM event names the flipped node, and whether such an event names this node or comes
    from it.

    The flipped node names its predecessor if a packet was already wrong when the node added to it.
    """
    events = [(rank, event[1] >> 24) for rank, event in enumerate(result["failure"])
              if event and event[0] == "WRONG_SUM"]
    node = result["node"]
    right = any(name == node for _, name in events)
    return right, right or (node, (node - 1) % NODES) in events


def show(results):
    """Print the number of flips by stage, unit and effect."""
    table = Table("unit", "flips", *COLUMNS, "wrong, found", "right node", "or next", "withheld",
                  title="flipped bits")
    stages = collections.defaultdict(lambda: collections.defaultdict(list))
    for result in results:
        name = unit(result["path"])
        stages[_stage(name)][name].append(result)
    for stage in STAGES:
        for name, of_unit in sorted(stages[stage].items()):
            table.add_row(name, *_numbers(of_unit))
        of_stage = [result for of_unit in stages[stage].values() for result in of_unit]
        table.add_row(f"all: {stage}", *_numbers(of_stage))
        table.add_section()
    table.add_row("all", *_numbers(results))
    Console(width=160).print(table)


def _numbers(results):
    """Row of the table: number of flips in total, with each effect, and with both an event and wrong elements in
    memory.

    For WRONG_SUM: number of flips whose event names the right node, whose event names it or comes from it, and whose
    event names a segment that no node has written (all-reduces only).
    """
    counts = collections.Counter(map(effect, results))
    written = sum(result["failure"] is not None and any(neither for _, neither in result["wrong"].values())
                  for result in results)
    wrong_sums = [result for result in results if effect(result) == "WRONG_SUM"]
    nodes = [sum(named(result)[wide] for result in wrong_sums) for wide in (False, True)]
    withheld = [result["withheld"] for result in wrong_sums if result["withheld"] is not None]
    numbers = (len(results), *(counts[column] for column in COLUMNS), written, *nodes)
    return [*(f"{number:,}" if number else "-" for number in numbers),
            f"{sum(withheld)} of {len(withheld)}" if withheld else "-"]
