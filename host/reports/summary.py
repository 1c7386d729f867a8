"""Printed report of a training run: verdict, figures, schedules and a sample of generated text."""

from typing import Any

from rich.console import Console

from host.columns import Column, Table, count_text, pairs, ratio_text
from host.driver.results import Cycles, total
from host.reports.changes import nodes_of, rows_of
from host.reports.page import NO_WITNESS
from host.reports.training_picture import codecs_of, only_compresses
from host.training.record import NODE, Step, Training, TrainingConfig

__all__ = ["SCHEDULES", "figures", "schedules_of", "show", "summary", "verdict"]


def verdict(report: dict[str, Any]) -> str:
    """Return the verdict of the comparison with the golden model, in one or two sentences."""
    if report["modelled"]:
        return NO_WITNESS
    steps = f"each of {report['steps']} steps" if report["steps"] > 1 else "the only step"
    overlapping = str(report["training"]["overlap"]).startswith("delayed")
    if overlapping:
        steps = f"each block of passes that overlap, {report['steps']} steps in all"
    if report["bit_exact"] is None:
        return f"Weights were not compared (--no-check) after {steps}."
    nodes = "the node identical" if report["nodes"] == 1 else "all nodes identical to each other and"
    sentence = f"Weights of {nodes} to the golden model, bit for bit, after {steps}."
    if report["changes"]:
        count = len(report["changes"])
        sentence += (f" So is the content of all memories, after {'each of ' if count > 1 else ''}{count} change"
                     f"{'s' if count > 1 else ''} of the rings; every word sent before was received.")
    if report["compute"] == "engine" and overlapping:
        return f"{sentence} So are the losses of each block's last step, and all scores."
    if report["compute"] == "engine":
        scores = " and scores" if report["workload"] == "digits" else ""
        return f"{sentence} So are all losses{scores} that they have computed."
    if report["elements_through"]:
        return f"{sentence} So are all {report['elements_through']:,} elements that went through masks."
    return sentence


def _hops(density: list[float]) -> str:
    return " → ".join(f"{value:.1%}" for value in density) or "-"


def _traffic(report: dict[str, Any], run: dict[str, Any]) -> list[tuple[str, str]]:
    """Return rows about traffic on links or, for a node without links, about compression of its gradients."""
    steps, words = report["steps"], ratio_text(run["words_sent"], run["words_dense"])
    mark = ", modelled" if report["modelled"] else ""
    if only_compresses(report):
        return [(f"cycles per fused update{mark}", count_text(run["cycles_fused_update"], steps)),
                ("words per compressed gradient", count_text(run["words_sent"], steps)), ("… of raw words", words),
                ("density", _hops(run["density_per_hop"]))]
    engine, overlap = run["training"]["compute"] == NODE, run["training"]["overlap"]
    subject = f"step, compute {'on nodes' if engine else 'modelled'}" if overlap else "fused update"
    cycles = [(f"cycles per {subject}{mark}", count_text(run["cycles_fused_update"], steps))]
    if engine:
        parts = _parts(run, steps)
        cycles = [*cycles, *parts] if overlap else [*parts, *cycles]
    if not (engine and overlap):
        cycles.append(("… of its link-cycle bound", ratio_text(run["cycles_fused_update"], run["bound_cycles"])))
    return [*cycles, ("link words per step", count_text(run["words_sent"], steps)), ("… of raw words", words),
            ("… of which gradients", count_text(run["words_scatter_reduce"], steps)),
            ("density hop by hop", _hops(run["density_per_hop"]))]


def _parts(run: dict[str, Any], steps: int) -> list[tuple[str, str]]:
    """Return rows with the cycles of each part of a step on computing nodes. A program adds a row for the ring."""
    compute, ring, overlap = run["cycles_compute"], run["cycles_communicate"], run["training"]["overlap"]
    parts = [("… matrix products", run["cycles_gemm"]), ("… functions of rows", run["cycles_vector"]),
             ("… lists of layers", _less(compute, run["cycles_gemm"], run["cycles_vector"]))]
    parts = [("cycles per step's layers", compute), *parts] if overlap is None else [*parts, ("… ring", ring)]
    if overlap == "none":
        parts.append(("… waiting", _less(run["cycles_fused_update"], compute, ring)))
    return [(name, count_text(cycles, steps)) for name, cycles in parts]


def _less(whole: Cycles, *parts: Cycles) -> Cycles:
    """Subtract the cycles of some parts from the cycles of the whole."""
    return total([whole, *(None if part is None else -part for part in parts)])


def _masks(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return rows about masks that separate commands apply; nodes with a compute engine need no such commands."""
    steps = report["per_step"]
    return [
        ("elements through masks", f"{report['elements_through']:,}"),
        ("… replaced", f"{report['elements_masked']:,}"),
        ("words of masks fetched", f"{report['mask_words_fetched']:,}"),
        ("cycles per step's masks", count_text(total(step["mask_cycles"] for step in steps), len(steps)))]


def _repairs(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return rows about link faults and their repair."""
    faults = report["faults"]
    return [] if faults is None else [
        ("faults of links · rate · seed", f"{report['faults_injected']:,} · {faults['rate']:g} · {faults['seed']}"),
        ("… detected by checks of words", f"{report['checks_failed']:,}"),
        ("restarts of links · words repeated", f"{report['link_restarts']:,} · {report['words_repeated']:,}"),
        ("wires per link, forward · back", " · ".join(map(str, report["wires_per_link"])))]


def _sparse(report: dict[str, Any], run: dict[str, Any]) -> list[tuple[str, str]]:
    """Return rows about a sparse run, or about the dense run that it is compared with."""
    losses, sparsify, steps = run["loss_per_epoch"], run["cycles_sparsify"], report["steps"]
    return [
        ("test accuracy", f"{run['accuracy']:.2%}"),
        ("loss, first and last epoch", f"{losses[0]:.4f} → {losses[-1]:.4f}"),
        *_traffic(report, run),
        ("… mean", "-" if run["density"] is None else f"{run['density']:.2%}"),
        ("cycles per sparsify", "-" if sparsify == 0 else count_text(sparsify, steps)),
        ("cycles per step, both", count_text(total([sparsify, run["cycles_fused_update"]]), steps))]


def _setup(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return rows about the setup of a run: nodes, formats, rings and repairs."""
    training = report["training"]
    rows = [("nodes · optimizer · batch", f"{nodes_of(report)} · {training['optimizer']} · {training['batch']}"),
            ("parameters · steps", f"{report['parameters']:,} · {report['steps']}")]
    codec, gradients = codecs_of(report)
    if codec != "raw":
        rows += [("new weights on the ring", codec),
                 ("… weights per word", ratio_text(report["weight_elements"], report["weight_words"]))]
        if report["codebooks"]:
            rows.append(("codebooks · words to all nodes", f"{report['codebooks']} · {report['codebook_words']:,}"))
    if gradients != "zero_value":
        rows.append(("gradients on the ring", gradients))
    rows += rows_of(report)
    if "slots" in report["links"]:
        rows.append(("links", report["links"]))
    rows += _repairs(report)
    if report["retries"]:
        rows.append(("retries after failures of the ring", f"{report['retries']:,}"))
    return rows


def _simulated(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return rows about the cost of the simulation."""
    port = report["host_port"]
    figures = [("cycles", "modelled")] if report["modelled"] else [
        ("simulated cycles", f"{report['cycles_simulated']:,}"),
        *([] if port["simulated"] else [("… host ports, modelled", f"{port['cycles_modelled']:,}")]),
        *([("floating-point units", "native")] if report["arithmetic"] == "native" else []),
        ("simulated cycles per second", f"{report['simulated_cycles_per_second']:,.0f}")]
    return [*figures,
            ("stages", " · ".join(f"{name} {value:.1f} s" for name, value in report["stage_seconds"].items()))]


#: A run with a schedule, as a pair of configuration and results.
_Run = tuple[TrainingConfig, Training]


def _steps(run: _Run) -> list[Step]:
    """Return the steps of a run that used its last schedule."""
    steps = run[1].steps
    return [step for step in steps if step.schedule == steps[-1].schedule]


def _mean(name: str) -> Column:
    """Return a column with the mean of a figure over the steps that used the run's last schedule."""
    def value(run: _Run) -> float | None:
        cycles = total(getattr(step, name) for step in _steps(run))
        return None if cycles is None else cycles / len(_steps(run))

    return Column(name, of=value)


def _bound(run: _Run) -> float | None:
    """Return the cycles of the busier queue, which are a lower bound for a pass."""
    compute, communicate = _COMPUTE.value(run), _COMMUNICATE.value(run)
    return None if compute is None or communicate is None else max(compute, communicate)


def _member(part: int, name: str) -> Column:
    """Return a column that shows an attribute of a run's configuration (``part`` 0) or results (``part`` 1)."""
    return Column(name, of=lambda run: getattr(run[part], name))


_COMPUTE, _COMMUNICATE = _mean("compute_cycles"), _mean("communicate_cycles")
#: Columns of the table of schedules, which has a row for each run.
SCHEDULES = (
    _member(0, "overlap"), _member(0, "macs"), Column("schedule", of=lambda run: run[1].steps[-1].schedule),
    _mean("cycles"), _mean("modelled_cycles"), _COMPUTE, _COMMUNICATE, Column("bound", of=_bound),
    _member(1, "search"), _member(1, "bit_exact"), _member(1, "timeline"))


def schedules_of(report: dict[str, Any]) -> list[Table]:
    """Return the table of schedules if nodes run a program; empty for other runs."""
    runs = report["schedules"]
    serial = next((run["cycles"] for run in runs if run["schedule"] == "none"), None)
    columns = (
        Column("schedule"), Column("cycles", format=",.0f", modelled=report["modelled"]),
        Column("of_serial", format=str, of=lambda run: ratio_text(run["cycles"], serial or 0)),
        Column("of_model", format=str, title="of modelled",
               of=lambda run: ratio_text(run["cycles"], run["modelled_cycles"] or 0)),
        *(Column(name, format=",.0f", title=name.removesuffix("_cycles"), modelled=report["modelled"])
          for name in ("compute_cycles", "communicate_cycles", "bound")))
    title = f"Cycles of a step, by schedule; compute: {report['compute']}"
    return [Table(f"{title}, {runs[0]['macs']} multiply-adds per cycle", columns, runs)] if runs else []


def summary(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the name and value of each summary row. With a density, rows also have the value of the dense run."""
    other = report["comparison"]
    if report["training"]["density"] is not None:
        rows: list[tuple[str, ...]] = [*_sparse(report, report)]
        if other is not None:
            rows = [(*row, value) for row, (_, value) in zip(rows, _sparse(report, other), strict=True)]
        return [*rows, *_setup(report), *_simulated(report)]
    if report["workload"] == "text":
        losses, held_out = report["loss_per_interval"], report["held_out_loss_per_interval"]
        return [
            ("held-out loss, nat per character", f"{report['held_out_loss']:.4f}"),
            ("… of a bigram model", f"{report['bigram_loss']:.4f}"),
            ("… below it", f"{report['below_bigram']:.4f}"),
            ("training loss, first and last interval", f"{losses[0]:.4f} → {losses[-1]:.4f}"),
            ("held-out loss after these", f"{held_out[0]:.4f} → {held_out[-1]:.4f}"), *_setup(report),
            *([] if report["compute"] == "engine" else _masks(report)), *_traffic(report, report),
            *_simulated(report)]
    losses, compared = report["loss_per_epoch"], []
    if other is not None:
        epochs = " · ".join(f"{name} {epoch or '-'}" for name, epoch in report["epochs_to_target"].items())
        compared = [(f"first epoch with {report['target_accuracy']:.0%}", epochs),
                    (f"test accuracy of {other['training']['optimizer']}", f"{other['accuracy']:.2%}")]
    return [("test accuracy", f"{report['accuracy']:.2%}"),
            ("training loss, first and last epoch", f"{losses[0]:.4f} → {losses[-1]:.4f}"), *compared,
            *_setup(report), *_traffic(report, report), *_simulated(report)]


def figures(report: dict[str, Any]) -> Table:
    """Return the table of a run's figures."""
    rows = summary(report)
    wide = max(map(len, rows)) > 2
    labels = (" ", report["training"]["label"], f"{report['comparison']['training']['label']}, dense") if wide else ()
    return pairs("Figures", rows, labels=labels)


def show(report: dict[str, Any], console: Console) -> None:
    """Print the figures, verdict, schedules and notes, and any text generated by a character model."""
    console.print(figures(report))
    console.print(verdict(report), soft_wrap=True)
    for table in schedules_of(report):
        console.print(table)
    for line in dict.fromkeys([*report["notes"], *(line for run in report["schedules"] for line in run["search"])]):
        console.print(line, soft_wrap=True)
    if report["sample"] is not None:
        console.print(f"It writes: {report['sample']['written']}", soft_wrap=True)
