"""Small configurations of all units that build quickly: one lane, and small nodes."""

import inspect

from boards.units import UNITS, integer_sum
from hdl.floating.format import BF16
from hdl.optimizer.burst import StreamedOptimizer
from hdl.optimizer.fixed_point import INT16
from hdl.optimizer.rules import Rule

#: Options of a node that builds quickly: one lane, SGD, and memories of two groups.
NODE = {"lanes": 1, "segment": 32, "memories.gradient": 64, "memories.weight": 64, "memories.state": 32,
        "memories.planes": 0}


def small(name):
    """Options for a small version of a unit.

    A unit with lanes gets one lane, a unit that accepts a NodeConfig a small node, and a compute unit two lanes and
    one row; a unit with blocks of ``lanes`` rows keeps its number of rows. ``optimizer.all`` is the optimizer with
    all rules in binary32; its parts, and further entries of the same component, use different formats or rules.
    """
    factory, arguments = UNITS[name].call({})
    parameters = inspect.signature(factory).parameters
    if "config" in parameters:
        if name in ("compute.engine", "compute.engine.row_owners", "far.mover"):
            return {**NODE, "masking": False, "sparsify": False, "lanes": 2, "compute.rows": 1,
                    "compute.activations": 64, "compute.far": 64 * (name == "far.mover")}
        if name == "far.memories":
            return {**NODE, "memories.far": 64}
        if name.startswith("int16."):
            return {"memories.gradient": 64, "memories.weight": 64}
        masking = name == "masking.engine"
        return {**NODE, "masking": masking, "sparsify": masking}
    if name == "compute.row_owners":
        return {"rows": 2}
    if name.startswith("compute."):
        return {option: number for option, number in {"rows": 1, "lanes": 2}.items()
                if isinstance(arguments.get(option), int)}
    halves = factory is integer_sum and arguments["width"] == 16  # a memory word holds two 16-bit sums
    options = {"lanes": 2 if halves else 1} if "lanes" in parameters else {}
    if name == "floating.divide":
        options["format"] = BF16
    elif name == "optimizer.update_lane":
        options["rules"] = (Rule.SGD,)
    elif factory is StreamedOptimizer and name != "optimizer.all" and "format" not in arguments:
        options.update(format=INT16, rules=(Rule.SGD, Rule.MOMENTUM))
    return options
