"""The style of all figures: colours, legend, axes and file formats."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Sequence
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from scipy.optimize import isotonic_regression

from nextpolicy.report import palette

KINDS = ("svg", "png")


def render(
    figure: Figure, dpi: int = 130, *, kinds: Sequence[str] = KINDS, facecolor: str = "white"
) -> dict[str, bytes]:
    """The figure as {"svg": ..., "png": ...}; equal figures give equal bytes."""
    files = {}
    FigureCanvasAgg(figure)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "nextpolicy"}):
        for kind in kinds:
            buffer = io.BytesIO()
            metadata = {"Date": None} if kind == "svg" else None
            figure.savefig(buffer, format=kind, dpi=dpi, facecolor=facecolor, metadata=metadata)
            files[kind] = buffer.getvalue()
    return files


def colour_of(variant: str, variants: Sequence[str]) -> str:
    return palette.COLOURS[palette.slot(variant, variants) % len(palette.COLOURS)]


def is_second(variant: str, variants: Sequence[str]) -> bool:
    """Whether the variant's colour is used a second time; then lines are dashed, bars hatched and points square."""
    return palette.is_second(palette.slot(variant, variants))


def literal(name: str) -> str:
    """A name with its dollars escaped, which matplotlib would read as mathematics."""
    return name.replace("$", r"\$")


def legend(figure: Figure, entries: dict[str, Artist]) -> None:
    """One legend above all panels, in as many columns as fit."""
    wide = 0.5 + 0.065 * max(map(len, entries), default=1)  # inches of an entry
    columns = min(4, max(1, int(figure.get_figwidth() // wide)))
    figure.legend(
        entries.values(), entries.keys(), loc="outside upper center", ncols=columns, fontsize=8, frameon=False
    )


def labelled(axes: Sequence[Axes]) -> dict[str, Artist]:
    """Legend entries of all panels by their labels."""
    return {text: handle for each in axes for handle, text in zip(*each.get_legend_handles_labels(), strict=True)}


def plain(axes: Axes, grid: Literal["x", "y", "both"]) -> None:
    """Grid lines instead of a frame."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color("#999999")
    axes.grid(axis=grid, color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)


def percent_scale(axes: Axes, which: Literal["x", "y"], values: Sequence[float]) -> None:
    """A linear axis, or one that is logarithmic beyond 20 if a large value would flatten the others."""
    if max((abs(v) for v in values if math.isfinite(v)), default=0.0) <= 60:
        return
    getattr(axes, f"set_{which}scale")("symlog", linthresh=20)
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(FixedLocator([-1000, -300, -100, -50, -20, 0, 20, 50, 100, 300, 1000, 3000]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
    axis.set_minor_locator(NullLocator())


def spread(places: Sequence[float], gap: float) -> list[float]:
    """The places moved as little as possible (least squares) so that all are at least `gap` apart, in their order."""
    order = np.argsort(places, kind="stable")
    steps = gap * np.arange(len(order))
    apart = isotonic_regression(np.asarray(places, np.float64)[order] - steps).x + steps
    return [float(x) for x in apart[np.argsort(order)]]


def names_fit(names: Collection[str]) -> bool:
    """Whether names can stand at the ends of their curves; otherwise a legend is needed."""
    return len(names) <= 4 and max(map(len, names), default=0) <= 16


def name_ends(axes: Axes, lines: Sequence[Line2D], size: float = 8.0) -> None:
    """Write the label of each line at its end, right of the axes, in its colour; the scales must be set before."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    axes.autoscale_view()
    to_axes = axes.transScale + axes.transLimits
    ends: list[tuple[Line2D, float]] = []
    for line in lines:
        y = np.asarray(line.get_ydata(), np.float64)
        x, finite = np.asarray(line.get_xdata(), np.float64), np.isfinite(y)
        if finite.any():
            ends.append((line, float(to_axes.transform((x[finite][-1], y[finite][-1]))[1])))
    gap = 1.25 * size / (axes.bbox.height / figure.dpi * 72)
    for (line, _), place in zip(ends, spread([y for _, y in ends], gap)):
        words = literal(str(line.get_label()))
        colour = line.get_color()
        axes.annotate(
            words, (1, place), (4, 0), "axes fraction", "offset points", va="center", fontsize=size, color=colour,
            annotation_clip=False, gid="name",
        )  # fmt: skip
