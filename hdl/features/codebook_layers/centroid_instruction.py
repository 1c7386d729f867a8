"""Checks the fields and operands of a CENTROID instruction, a product with indices as weights, and creates its
job."""

from amaranth.hdl import Cat, Mux
from amaranth.utils import bits_for, exact_log2

from hdl.features.codebook_layers.centroid_layer import INDEXED_COLUMNS
from hdl.features.compute.access import place_operands
from hdl.features.compute.loop_nest import SIZE_BITS

__all__ = ["CENTROID_OPERANDS", "LINE_BITS", "centroid_job", "centroid_malformed", "centroid_operands",
           "centroid_sizes"]

CENTROID_OPERANDS = ("target", "x", "indices", "start", "table", "gate")
"""Operands in the order of their checks: the target first."""

LINE_BITS = bits_for(1 << SIZE_BITS)
"""Width in bits of the number of elements in a line of indices, which may exceed the number of columns."""


def centroid_sizes(instruction):
    """Size fields of an instruction, keyed by name."""
    return {"inputs": instruction.columns, "outputs": instruction.outputs, "examples": instruction.rows}


def centroid_malformed(instruction, sizes, large):
    """Whether an instruction is malformed, regardless of its operands.

    Parameters
    ----------
    instruction : centroid_layout()
    sizes, large : mapping of str to Value
        Sizes of the instruction, and whether each size is too large, keyed by name.
    """
    names = centroid_sizes(instruction)
    reserved = Cat(instruction[name] for name in instruction.shape().members if name.startswith("reserved"))
    return (reserved.any() |
            (instruction.gradient & Cat(instruction.initial, instruction.relu, instruction.gated).any())
            | Cat(large[name] for name in names).any() | ~Cat(sizes[name].any() for name in names).all())


def centroid_operands(instruction, sizes, *, lanes, centroids):
    """Return the operands, in the order of :data:`CENTROID_OPERANDS` and in the form used for checking.

    Parameters
    ----------
    instruction, sizes
        See :func:`centroid_malformed`.
    lanes, centroids : int
    """
    gradient, outputs, inputs = instruction.gradient, sizes["outputs"], sizes["inputs"]
    lane_bits = exact_log2(lanes)
    groups = (outputs + lanes - 1) >> lane_bits
    line = ((inputs + INDEXED_COLUMNS - 1) >> exact_log2(INDEXED_COLUMNS)) << lane_bits
    # A table is a single row, so it needs no stride.
    shapes = {"target": (Mux(gradient, 1, sizes["examples"]), Mux(gradient, centroids, outputs)),
              "x": (sizes["examples"], inputs), "indices": (groups, line), "table": (1, centroids)}
    strides = {name: instruction[f"stride_{name}"] for name in CENTROID_OPERANDS if name != "table"}
    strides |= {"table": 0, "target": Mux(gradient, 0, instruction.stride_target)}
    used = {"start": gradient | instruction.initial, "table": ~gradient, "gate": instruction.gated}
    still = {"target": gradient, "start": ~gradient, "table": 1}
    checks = []
    for name in CENTROID_OPERANDS:
        rows, columns = shapes.get(name, (sizes["examples"], outputs))
        checks.append({
            "operand": instruction[name], "rows": rows, "columns": columns, "stride": strides[name],
            "used": used.get(name, 1), "target": name == "target", "free": 0, "ones": 0, "still": still.get(name, 0),
            "same": 0})
    return checks


def centroid_job(m, job, instruction, sizes, bases, *, lanes):
    """Create the job of an instruction.

    Parameters
    ----------
    job : centroid_job_layout(...)
    instruction, sizes
        See :func:`centroid_malformed`.
    bases : sequence of Signal
        Addresses of the operands, in the order in which they are checked.
    lanes : int
    """
    lane_bits = exact_log2(lanes)
    m.d.comb += [
        job.rows.eq(sizes["examples"]), job.columns.eq(sizes["inputs"]), job.outputs.eq(sizes["outputs"]),
        *(job[name].eq(instruction[name]) for name in ("gradient", "initial", "relu", "gated"))]
    place_operands(m, job, instruction, CENTROID_OPERANDS, bases, lanes=lanes)
    for name in ("target", "x", "indices", "start", "gate"):
        m.d.comb += job[name].stride.eq(instruction[f"stride_{name}"] >> lane_bits)
