"""Style of all pictures: colours of text and axes, and Matplotlib's settings."""

__all__ = ["FAINT", "INK", "STYLE"]

INK, FAINT = "#1d2733", "#8a97a6"

#: For :func:`matplotlib.rc_context`.
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 9.5, "text.color": INK, "axes.edgecolor": FAINT,
    "axes.labelcolor": INK, "xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#e7ebef", "axes.axisbelow": True, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.titlesize": 11, "legend.frameon": False,
}
