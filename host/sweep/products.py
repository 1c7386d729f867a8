"""Formats of products in a sweep: runs whose nodes compute, and the array that multiplies in each format.

Each format of :data:`hdl.compute.operands.OPERANDS` takes one build of a node with :data:`MACS` multiply-adds per
cycle, a training run on digits per ring size, and the area of its array. What travels is the same for all.
docs/sweep.md lists the fields of a row.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hdl.config import Compute, NodeConfig, Programs
from hdl.config.forms import as_dict
from host.program.schedules import Kind
from host.sweep.jobs import Job, JobKind
from host.sweep.results import CELLS
from host.training.record import NODE
from host.training.workloads import WorkloadName

__all__ = ["MACS", "NODES", "Product", "plan_products", "product_rows"]

#: Multiply-adds per cycle of a node, and of the arrays of 4 rows and 4 columns whose area is shown.
MACS = 16
#: Words of a node's activation memory: layers, lists and shares of half a batch of digits.
ACTIVATION_WORDS = 16_384
#: Ring sizes, unless others are asked for.
NODES = (4,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """A row of the result: a format of products on a ring, and the names of the jobs that measure it.

    Members
    -------
    array : str or None
        Placement or count of the array, if it is measured.
    """

    format: str
    nodes: int
    run: str
    array: str | None


def plan_products(formats: Sequence[str], *, node: NodeConfig, nodes: Sequence[int], epochs: int,
                  area: Callable[[str], JobKind | None], add: Callable[[Job], str]) -> list[Product]:
    """Plan the jobs and rows of formats of products.

    Parameters
    ----------
    formats : sequence of str
        Names of formats of operands.
    node : NodeConfig
        Node without a compute engine, with memory for digits.
    nodes : sequence of int
        Ring sizes.
    area : callable
        Kind of the job that measures the array of a format: placement, count, or None for neither.
    add : callable
        Takes a job into the plan; returns its name.
    """
    found = []
    for name in formats:
        options = {"compute": NODE, "compute_format": name, "overlap": Kind.NONE.value, "macs": MACS}
        engine = node.replace(programs=Programs(), compute=Compute(
            rows=MACS // node.lanes, activations=ACTIVATION_WORDS, operands=name))
        shape = {"configuration": as_dict(engine)}
        build = add(Job(kind=JobKind.BUILD, name=f"build-products-{name}", parameters=shape, estimate=50))
        runs = [(count, add(Job(
            kind=JobKind.RUN, name=f"run-products-{name}-n{count}-epochs{epochs}", needs=(build,),
            parameters={**shape, "workload": WorkloadName.DIGITS.value, "nodes": count, "epochs": epochs,
                        "training": options}, estimate=5 + 9 * epochs))) for count in nodes]
        array = None
        if (kind := area(name)) is not None:
            placed = kind is JobKind.PLACE
            array = add(Job(kind=kind, name=f"{kind.value}-operands-{name}",
                            parameters={"unit": f"compute.operands_{name}", **({"seeds": 1} if placed else {})},
                            estimate=300 if placed else 100))
        found += [Product(format=name, nodes=count, run=run, array=array) for count, run in runs]
    return found


def product_rows(products: Sequence[Product], found: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows for which there is a training run, from the results of jobs by their names."""
    return [_row(product, found[product.run], {} if product.array is None else found.get(product.array, {}))
            for product in products if product.run in found]


def _row(product: Product, run: Mapping[str, Any], array: Mapping[str, Any]) -> dict[str, Any]:
    luts, fmax = array.get("lut4_occupied"), array.get("fmax_mhz", {}).get("median")
    reached = run["multiply_adds"] / run["cycles_products"]
    peak, gflops = (None if fmax is None else 2 * rate * fmax / 1000 for rate in (MACS, reached))
    return {
        "workload": WorkloadName.DIGITS.value,
        "nodes": product.nodes,
        "compute_format": product.format,
        "macs": MACS,
        "steps": run["steps"],
        "loss": run["loss"],
        "accuracy": run["measure"],
        "bit_exact": run["bit_exact"],
        "words": run["words"],
        "cycles_per_step": run["cycles_per_step"],
        "cycles_products": run["cycles_products"],
        "cycles_functions": run["cycles_functions"],
        "multiply_adds": run["multiply_adds"],
        "macs_reached": reached,
        "luts": luts,
        **{name: array.get(name) for name in CELLS},
        "fmax_mhz": fmax,
        "luts_per_mac": None if luts is None else luts / MACS,
        "gflops_peak": peak,
        "gflops": gflops,
        "gflops_peak_per_lut": _part(peak, luts),
        "gflops_per_lut": _part(gflops, luts),
        "simulated_cycles": run["cycles"],
        "simulation_seconds": run["simulation_seconds"],
        "configuration_hash": run["configuration_hash"],
    }


def _part(rate: float | None, luts: int | None) -> float | None:
    return None if rate is None or luts is None else rate / luts
