"""How all figures look: colours, legend, axes, and how they are saved."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from nextpolicy.report import palette

KINDS = {"svg": {"metadata": {"Date": None}}, "png": {"dpi": 130}}


def drawn(figure: Figure) -> dict[str, bytes]:
    """Kind of file -> content; the same figure gives the same bytes."""
    files = {}
    FigureCanvasAgg(figure)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "nextpolicy"}):
        for kind, options in KINDS.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, facecolor="white", **options)
            files[kind] = buffer.getvalue()
    return files


def colour_of(variant: str, variants: Sequence[str]) -> str:
    return palette.COLOURS[palette.slot(variant, variants) % len(palette.COLOURS)]


def is_second(variant: str, variants: Sequence[str]) -> bool:
    """Whether another variant may have its colour: then lines are dashed, bars hatched and points squares."""
    return palette.is_second(palette.slot(variant, variants))


def literal(name: str) -> str:
    """A name as it is: between two bare dollars matplotlib would read mathematics."""
    return name.replace("$", r"\$")


def legend(figure: Figure, entries: dict[str, Any]) -> None:
    """Above everything, in as many columns as there is room for."""
    wide = 0.5 + 0.065 * max(map(len, entries), default=1)  # inches of an entry
    columns = min(4, max(1, int(figure.get_figwidth() // wide)))
    where = {"loc": "outside upper center", "ncols": columns, "fontsize": 8, "frameon": False}
    figure.legend(entries.values(), entries.keys(), **where)


def labelled(axes: Sequence[Any]) -> dict[str, Any]:
    return {text: handle for each in axes for handle, text in zip(*each.get_legend_handles_labels(), strict=True)}


def plain(axes: Any, grid: str) -> None:
    """Lines of a grid instead of a frame."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color("#999999")
    axes.grid(axis=grid, color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)


def percent_scale(axes: Any, which: str, values: Sequence[float]) -> None:
    """Linear, or linear about 0 and logarithmic beyond where one environment would flatten the others."""
    if max((abs(v) for v in values if math.isfinite(v)), default=0.0) <= 60:
        return
    getattr(axes, f"set_{which}scale")("symlog", linthresh=20)
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(FixedLocator([-1000, -300, -100, -50, -20, 0, 20, 50, 100, 300, 1000, 3000]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
    axis.set_minor_locator(NullLocator())
