"""Picture of a training run, with curves of loss, traffic and cycles."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from hdl.compression.registry import RAW, ZERO_VALUE
from host.columns import NOT_MODELLED
from host.reports.changes import hops, mark, nodes_of
from host.reports.style import COLOURS, FAINT, INK, annotate_outlined, picture

__all__ = ["codecs_of", "draw", "heading", "only_compresses"]

_SENT, _DENSE, _SCATTER, _OTHER, _ATTENTION = COLOURS[:5]
#: Curve styles: dots for the run itself, squares for the run that it is compared with.
_DOTS: dict[str, Any] = {"linewidth": 2, "marker": "o", "markersize": 4}
_SQUARES: dict[str, Any] = {"color": _OTHER, "linewidth": 2, "marker": "s", "markersize": 3.5}
_DASHED = (0, (4, 3))


def draw(report: dict[str, Any], path: pathlib.Path, *, note: str) -> None:
    """Draw a report created by :func:`host.reports.report.build_report`, with a note below the title."""
    panels = _panels(report)
    with picture(path, size=(11 if len(panels) == 4 else 15.5, 7.4), rows=2, columns=len(panels) // 2,
                 title=heading(report), note=note, colour=_SENT if report["bit_exact"] else FAINT) as axes:
        for panel, part in zip(panels, axes, strict=True):
            panel(part, report)


def _panels(report: dict[str, Any]) -> list[Callable[[Any, dict[str, Any]], None]]:
    """Return the functions that draw the panels, in two rows."""
    if report["workload"] == "text":
        return [_draw_text_loss, _draw_attention, _draw_masked, _draw_words, _draw_density, _draw_cycles]
    if report["training"]["density"] is not None:
        return [_draw_loss, _draw_accuracy, _draw_threshold, _draw_words, _draw_density, _draw_cycles]
    return [_draw_loss, _draw_accuracy, _draw_words, _draw_density]


def heading(report: dict[str, Any]) -> str:
    """Summarize the run and its result in one line."""
    nodes = "1 node" if nodes_of(report) == "1" else f"{nodes_of(report)} nodes"
    run = f"{nodes}, {report['parameters']:,} parameters, {report['training']['label']}{_codecs(report)}"
    if report["workload"] == "text":
        side = "below" if report["below_bigram"] >= 0 else "above"
        return (f"{run}: {report['held_out_loss']:.3f} nat per character after {report['steps']} steps, "
                f"{abs(report['below_bigram']):.3f} {side} a bigram model")
    title = f"{run}: {report['accuracy']:.2%} after {report['steps']} steps"
    if _dense(report) is not None:
        title += f", {report['comparison']['accuracy']:.2%} dense"
    return title


def _codecs(report: dict[str, Any]) -> str:
    """Describe the link codecs, unless they are the defaults, and the rate of link faults."""
    chosen = zip(("weights", "gradients"), codecs_of(report), (RAW, ZERO_VALUE), strict=True)
    codecs = "".join(f", {what} {name}" for what, name, usual in chosen if name != usual)
    return codecs if report["faults"] is None else f"{codecs}, faults {report['faults']['rate']:g}"


def only_compresses(report: dict[str, Any]) -> bool:
    """Whether the node of a run has no links and only compresses its gradients."""
    return bool(report["configuration"]["kind"] == "int16")


def codecs_of(report: dict[str, Any]) -> tuple[str, str]:
    """Return the codecs of new weights and of gradients."""
    node = report["configuration"]
    return node.get("weights", {}).get("codec", RAW), node.get("gradients", ZERO_VALUE)


def _dense(report: dict[str, Any]) -> Any:
    """Return the dense run for comparison with a run that has a density, or None."""
    return report["comparison"] if report["training"]["density"] is not None else None


def _write_right(axes: Any, height: float, text: str, colour: str) -> None:
    """Write a line of text at the right edge of the axes."""
    axes.text(0.99, height, text, transform=axes.transAxes, ha="right", color=colour, fontweight="bold")


def _column(report: dict[str, Any], name: str) -> Any:
    return np.array([step[name] for step in report["per_step"]])


def _draw_loss(axes: Any, report: dict[str, Any]) -> None:
    losses, other = report["loss_per_epoch"], report["comparison"]
    epochs, scale = np.arange(1, len(losses) + 1), len(losses) / report["steps"]
    axes.plot(_column(report, "number") * scale, _column(report, "loss"), color=_SCATTER, alpha=0.35, linewidth=1)
    if other is not None:
        axes.plot(epochs, other["loss_per_epoch"], **_SQUARES, label=other["training"]["label"])
    axes.plot(epochs, losses, color=_SCATTER, **_DOTS, label=report["training"]["label"])
    if other is not None:
        axes.legend(loc="upper right")
    mark(axes, report, scale=scale, named=True)
    axes.set(title="Training loss", xlabel="epoch (dots: mean of each)", yscale="log")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _draw_accuracy(axes: Any, report: dict[str, Any]) -> None:
    values = np.array(report["accuracy_per_epoch"]) * 100
    epochs = np.arange(1, len(values) + 1)
    lowest = values.min()
    if report["comparison"] is not None:
        lowest = min(lowest, 100 * min(report["comparison"]["accuracy_per_epoch"]))
        _draw_race(axes, report, epochs)
    else:
        axes.annotate(f"{values[-1]:.2f} %", (epochs[-1], values[-1]), xytext=(0, -16), textcoords="offset points",
                      ha="right", fontweight="bold", color=_SENT)
    axes.plot(epochs, values, color=_SENT, **_DOTS)
    axes.set(title="Test accuracy", xlabel="epoch", ylabel="%", ylim=(lowest - 2, 100))
    mark(axes, report, scale=len(values) / report["steps"])
    axes.xaxis.get_major_locator().set_params(integer=True)


def _draw_race(axes: Any, report: dict[str, Any], epochs: Any) -> None:
    """Draw the curve of the comparison run's optimizer, and mark where each run reaches the target accuracy."""
    other, target = report["comparison"], report["target_accuracy"] * 100
    curves = [(report, _SENT, "o"), (other, _OTHER, "s")]
    axes.axhline(target, color=FAINT, linewidth=1, linestyle=_DASHED)
    axes.plot(epochs, np.array(other["accuracy_per_epoch"]) * 100, **_SQUARES)
    for line, (source, color, marker) in enumerate(curves):
        name = source["training"]["label"]
        epoch = report["epochs_to_target"][name]
        if epoch is not None:
            axes.plot(epoch, source["accuracy_per_epoch"][epoch - 1] * 100, marker=marker, markersize=12,
                      markerfacecolor="none", markeredgewidth=2, color=color)
        reached = f"does not reach {target:.0f} %" if epoch is None else f"{target:.0f} % in epoch {epoch}"
        axes.text(0.99, 0.14 - 0.08 * line, f"{name}: {reached}, {source['accuracy'] * 100:.2f} % at the end",
                  transform=axes.transAxes, ha="right", fontweight="bold", color=color,
                  fontsize=9.5 if _dense(report) is None else 8.5)


def _draw_words(axes: Any, report: dict[str, Any]) -> None:
    single, dense_run, steps = only_compresses(report), _dense(report), _column(report, "number")
    sent, dense = _column(report, "words_sent") / 1000, _column(report, "words_dense") / 1000
    axes.plot(steps, dense, color=_DENSE, linewidth=2, label="every payload raw")
    if dense_run is not None:
        axes.plot(steps, _column(dense_run, "words_sent") / 1000, color=_OTHER, linewidth=1.5, label="sent, dense")
    axes.plot(steps, sent, color=_SENT, linewidth=2, label="sent")
    axes.fill_between(steps, sent, dense, where=sent < dense, color=_DENSE, alpha=0.18, linewidth=0)
    axes.fill_between(steps, 0, sent, color=_SENT, alpha=0.08, linewidth=0)
    axes.set(title="Words of the compressed gradient, per step" if single else "Words on the links, per step",
             xlabel="step", ylabel="thousand words" if single else "thousand words, all links",
             ylim=(0, max(float(sent.max()), float(dense.max()), 1) * 1.15))
    if report["words_dense"]:
        saved = f"{1 - report['words_sent'] / report['words_dense']:.1%} fewer words than raw"
        if dense_run is not None:
            saved += f", {1 - report['words_sent'] / dense_run['words_sent']:.1%} fewer than dense"
        _write_right(axes, 0.04, saved, _SENT)
    if report["faults"] is not None:
        _draw_repairs(axes, report)
    mark(axes, report)
    axes.legend(loc="upper right", ncols=3)


def _draw_repairs(axes: Any, report: dict[str, Any]) -> None:
    """Draw the number of words that the links resent in each step, if any were."""
    repeated = _column(report, "words_repeated") / 1000
    mended = repeated > 0
    axes.vlines(_column(report, "number")[mended], 0, repeated[mended], color=_SCATTER, linewidth=1.2,
                label="repeated")
    _write_right(axes, 0.12, f"{report['faults_injected']:,} faults, {report['link_restarts']:,} restarts, "
                             f"{report['words_repeated']:,} words repeated", _SCATTER)


def _draw_density(axes: Any, report: dict[str, Any]) -> None:
    single = only_compresses(report)
    axes.set(title="Density of gradients" if single else "Density of gradients, hop by hop",
             xlabel="on the node" if single else "hop of scatter-reduce", ylabel="non-zero elements, %")
    values = hops([step["density"] for step in report["per_step"]]) * 100
    steps, count = values.shape
    if not count:
        axes.text(0.5, 0.5, "one node: no links", transform=axes.transAxes, ha="center", color=FAINT)
        axes.set_axis_off()
        return
    bodies = axes.violinplot([column[~np.isnan(column)] for column in values.T], positions=range(1, count + 1),
                             widths=0.75, showextrema=False)
    for body in bodies["bodies"]:
        body.set(facecolor=_SENT, alpha=0.16, edgecolor="none")
    spread = np.random.default_rng(0).uniform(-0.16, 0.16, steps)
    for hop, column in enumerate(values.T, start=1):
        points = axes.scatter(hop + spread, column, c=np.arange(steps), vmin=0, vmax=steps - 1, s=7, cmap="viridis",
                              alpha=0.75, linewidths=0)
    if _dense(report) is not None:
        _draw_dense_density(axes, np.array(_dense(report)["density_per_hop"]) * 100, np.nanmax(values))
    means = np.nanmean(values, axis=0)
    axes.plot(range(1, count + 1), means, color=INK, linewidth=1.2, marker="D", markersize=4)
    for hop, mean in enumerate(means, start=1):
        annotate_outlined(axes, f"{mean:.1f} %", (hop, mean), xytext=(0, 9), ha="center", fontweight="bold")
    axes.figure.colorbar(points, ax=axes, label="step", pad=0.01, aspect=30)
    axes.set_xticks([] if single else range(1, count + 1))


def _draw_dense_density(axes: Any, dense: Any, top: float) -> None:
    """Draw the dense run's mean density at each hop."""
    axes.plot(range(1, len(dense) + 1), dense, **{**_SQUARES, "markersize": 5})
    for hop, mean in enumerate(dense, start=1):
        annotate_outlined(axes, f"{mean:.1f} %", (hop, mean), xytext=(0, 9), ha="center", color=_OTHER)
    axes.annotate("dense", (1, dense[0]), xytext=(0, -15), textcoords="offset points", ha="center", color=_OTHER,
                  fontweight="bold")
    axes.set_ylim(0, 1.12 * max(top, dense.max()))


def _draw_threshold(axes: Any, report: dict[str, Any]) -> None:
    steps, target = _column(report, "number"), 100 * report["training"]["density"]
    axes.plot(steps, _column(report, "threshold"), color=_SCATTER, linewidth=1.2, alpha=0.8)
    axes.set(title="Threshold, and elements sent for it", xlabel="step",
             ylim=(0, 1.3 * float(_column(report, "threshold").max())))
    axes.set_ylabel("least magnitude that is sent", color=_SCATTER)
    if not any(step["density"] for step in report["per_step"]):
        return
    means = np.array([np.mean(step["density"]) if step["density"] else np.nan for step in report["per_step"]]) * 100
    right = axes.twinx()
    right.plot(steps, means, color=_SENT, linewidth=1.5)
    right.axhline(target, color=INK, linewidth=1.2, linestyle=_DASHED)
    _write_right(right, 0.93, f"density asked for: {target:.0f} % (dashed) · got: {100 * report['density']:.2f} %",
                 _SENT)
    right.set_ylim(0, 1.3 * max(float(np.nanmax(means)), target))
    right.set_ylabel("density, mean over hops, %", color=_SENT)
    right.grid(False)


def _mean(run: dict[str, Any], name: str) -> float:
    """Return the mean of a figure over all steps, or 0 for cycles that are not modelled."""
    return float(np.mean([step[name] or 0 for step in run["per_step"]]))


def _draw_cycles(axes: Any, report: dict[str, Any]) -> None:
    """Draw the cycles of each part of a step, without reads and writes by the host."""
    runs = [(report, report["training"]["label"])]
    if _dense(report) is not None:
        runs.append((report["comparison"], "dense"))
    shown = set()
    longest = max(_mean(run, "cycles") for run, _ in runs)
    for row, (run, _) in enumerate(runs):
        mask, sparsify, scatter, cycles = (_mean(run, name) for name in (
            "mask_cycles", "sparsify_cycles", "scatter_cycles", "cycles"))
        start = 0.0
        for label, width, color in (("mask", mask, _ATTENTION), ("sparsify", sparsify, _SCATTER), (
                "scatter-reduce", scatter, _SENT), ("update, all-gather", cycles - scatter, _DENSE)):
            if not width:
                continue
            axes.barh(row, width, left=start, height=0.5, color=color, label=None if label in shown else label)
            shown.add(label)
            if width > longest / 12:
                axes.text(start + width / 2, row, f"{width:,.0f}", ha="center", va="center", color="white",
                          fontweight="bold", fontsize=8.5)
            start += width
        axes.annotate(f"{start:,.0f}" if start else NOT_MODELLED, (start, row), xytext=(5, 0),
                      textcoords="offset points", va="center", fontweight="bold")
    axes.set_yticks(range(len(runs)), [label for _, label in runs], rotation=90, va="center")
    axes.set(title="Cycles per step", xlabel="cycles, without the host's reading and writing",
             ylim=(len(runs) - 0.4, -0.75))
    axes.margins(x=0.14)
    axes.grid(False, axis="y")
    if shown:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=8.5, handlelength=1)


def _draw_text_loss(axes: Any, report: dict[str, Any]) -> None:
    axes.set(title="Loss, nat per character", xlabel="step")
    axes.plot(_column(report, "number"), _column(report, "loss"), color=_SCATTER, alpha=0.35, linewidth=1,
              label="training, of each batch")
    held_out, at = report["held_out_loss_per_interval"], report["measured_at"]
    axes.plot(at, held_out, color=_SENT, **_DOTS, label="held-out text")
    bigram = report["bigram_loss"]
    axes.axhline(bigram, color=INK, linewidth=1.2, linestyle=_DASHED, label=f"bigram model, {bigram:.3f}")
    axes.annotate("", (at[-1], held_out[-1]), xytext=(at[-1], bigram),
                  arrowprops={"arrowstyle": "<->", "color": INK, "shrinkA": 0, "shrinkB": 3})
    axes.annotate(f"{held_out[-1]:.3f}, {bigram - held_out[-1]:+.3f} nat ahead".replace("+", ""),
                  (at[-1], min(held_out[-1], bigram)), xytext=(0, -16), textcoords="offset points", ha="right",
                  fontweight="bold", color=_SENT)
    mark(axes, report, named=True)
    axes.legend(loc="upper right")


def _draw_attention(axes: Any, report: dict[str, Any]) -> None:
    """Draw the attention weights of a held-out sequence, leaving masked positions blank."""
    sample = report["sample"]
    if sample is None:
        axes.set_axis_off()
        return
    heads = np.array(sample["attention"])
    count, rows, columns = heads.shape
    # Place the heads next to each other, separated by a column of NaN.
    weights = np.concatenate(np.pad(heads, ((0, 0), (0, 0), (0, 1)), constant_values=np.nan), axis=1)[:, :-1]
    axes.imshow(np.where(np.isnan(weights), 1.0, 0.86), cmap="gray", vmin=0, vmax=1, aspect="auto")
    image = axes.imshow(np.ma.masked_less_equal(np.ma.masked_invalid(weights), 0), cmap="BuPu", vmin=0, vmax=1,
                        aspect="auto")
    shown = [character.replace(" ", "␣") for character in sample["text"]] + ["·"] * (columns - len(sample["text"]))
    axes.set_xticks([head * (columns + 1) + n for head in range(count) for n in range(columns)], shown * count,
                    fontsize=8, family="DejaVu Sans Mono")
    axes.set_yticks(range(rows), shown, fontsize=8, family="DejaVu Sans Mono")
    axes.tick_params(length=0)
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes, label="weight", pad=0.01, aspect=30)
    axes.set(title=f"Attention, {count} heads: who looks at whom",
             xlabel="looked at (grey: masked by the node; ·: padding)")
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_masked(axes: Any, report: dict[str, Any]) -> None:
    steps = _column(report, "number")
    through, masked = _column(report, "elements_through") / 1000, _column(report, "elements_masked") / 1000
    axes.fill_between(steps, 0, through - masked, color=_SENT, alpha=0.25, linewidth=0, label="kept")
    axes.fill_between(steps, through - masked, through, color=_ATTENTION, alpha=0.45, linewidth=0, label="replaced")
    axes.set(title="Elements through the nodes' masks, per step", xlabel="step", ylabel="thousand, all nodes",
             ylim=(0, 1.15 * max(float(through.max()), 1e-3)))
    share = masked.sum() / max(through.sum(), 1e-9)
    _write_right(axes, 0.04, f"{share:.1%} replaced · {report['mask_words_fetched']:,} words of masks fetched", INK)
    axes.legend(loc="upper right", ncols=2)
