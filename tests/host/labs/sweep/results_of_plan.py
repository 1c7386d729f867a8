"""Made-up results for the jobs of a sweep plan, and a dummy library."""

from host.labs.sweep import jobs
from host.labs.sweep.jobs import JobKind
from sim.verilated import cache


def built(folder):
    """Create a dummy library in a cache folder that is marked as complete."""
    library = folder / "ring" / "ring.so"
    if not cache.complete(library.parent):
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_text("library")
        cache._seal(library.parent)
    return library


def store_all(plan, folder, *, without=()):
    """Store a made-up result for each job, with different numbers for each job."""
    for number, job in enumerate(plan.jobs, start=1):
        if any(part in job.name for part in without):
            continue
        if job.kind is JobKind.BUILD:
            result = {"library": str(built(folder / "built"))}
        elif job.kind in (JobKind.PLACE, JobKind.COUNT):
            result = {name: 100 * number + index for index, name in enumerate(jobs.CELLS)}
            result["lut4_occupied"] = 160 * number
            if job.kind is JobKind.PLACE:
                result["fmax_mhz"] = {"median": 100.0 + number}
        else:
            words = 1000.0 * job.parameters["nodes"] / (1 if "raw+zero" in job.name else 2)
            result = {"steps": 12, "loss": 0.5 + number / 100, "measure": 0.9, "bit_exact": True, "words": words,
                      "words_gradients": 300.0, "words_weights": words - 300, "cycles_per_step": 1234.5,
                      "bound_ratio": 1.03, "parameters": 4810, "cycles": 99, "port_cycles": 55,
                      "simulation_seconds": 1.5,
                      "configuration_hash": number, "bigram_loss": 2.5 if "text" in job.name else None}
            if "training" in job.parameters:
                result |= {"multiply_adds": 4000.0, "cycles_products": 500.0, "cycles_functions": 250.0}
        jobs.store(folder, job, result, 1.0)
