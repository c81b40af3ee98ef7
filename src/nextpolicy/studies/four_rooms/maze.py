"""Plots on the Four Rooms map: heat maps, signed maps and policy arrows, readable without colour."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm, Normalize

from nextpolicy.tabular import four_rooms_mdp

WALL = "#3b3b3b"
SEQUENTIAL = "viridis"  # monotonic lightness, so it also works in greyscale
SIGNED = "PuOr"  # marks show the sign too, since both ends are dark in greyscale
SMALLEST_ARROW = 0.05


def frame(axes: Axes, title: str = "", *, start: tuple[int, int] | None = None, marks: bool = True) -> None:
    """Draw walls, start and goal, with row 0 at the top."""
    walls = np.where(four_rooms_mdp.WALLS, 1.0, np.nan)
    axes.imshow(walls, cmap=ListedColormap([WALL]), interpolation="none", zorder=1)
    axes.set(xticks=[], yticks=[], xlim=(-0.5, 12.5), ylim=(12.5, -0.5))
    axes.set_aspect("equal")
    for spine in axes.spines.values():
        spine.set_visible(False)
    if title:
        axes.set_title(title, fontsize=9)
    if marks:
        for letter, (row, col) in (("S", start or four_rooms_mdp.START), ("G", four_rooms_mdp.GOAL)):
            box = {"boxstyle": "circle,pad=0.12", "facecolor": "white", "edgecolor": "black", "linewidth": 0.7}
            where: dict[str, Any] = {"ha": "center", "va": "center", "bbox": box, "zorder": 5}
            # Shifted up and left, so that the arrow or colour of the cell stays visible.
            shift = 0.0 if letter == "G" else 0.25
            axes.text(col - shift, row - shift, letter, fontsize=5.5, weight="bold", **where)


def _grid(values: np.ndarray) -> np.ndarray:
    """Values per state on the map, blank at the goal."""
    grid = four_rooms_mdp.as_grid(values)
    grid[four_rooms_mdp.GOAL] = np.nan
    return grid


def heat(axes: Axes, values: np.ndarray, norm: Normalize, title: str = "", marks: bool = True) -> Any:
    """Draw values per state [104]. Returns the image, for a colour bar."""
    image = axes.imshow(_grid(values), cmap=SEQUENTIAL, norm=norm, interpolation="none", zorder=0)
    frame(axes, title, marks=marks)
    return image


def signed(axes: Axes, values: np.ndarray, limit: float, title: str = "", marks: bool = True) -> Any:
    """Draw signed values [104], white at 0. Cells whose size exceeds a tenth of `limit` have a + or - mark."""
    norm = Normalize(-limit, limit)
    image = axes.imshow(_grid(values), cmap=SIGNED, norm=norm, interpolation="none", zorder=0)
    frame(axes, title, marks=marks)
    rows, cols = four_rooms_mdp.cells.T
    # White marks on dark cells, black on pale ones; not quite, because the page turns black and white into its own.
    for symbol, chosen in (("+", values > 0.1 * limit), ("_", values < -0.1 * limit)):
        colour = np.where(np.abs(values[chosen]) > 0.6 * limit, "#fefefe", "#010101")
        axes.scatter(cols[chosen], rows[chosen], marker=symbol, c=colour, s=10, linewidths=0.8, zorder=3)
    return image


def arrows(axes: Axes, policy: np.ndarray, title: str = "", marks: bool = True) -> Any:
    """Draw arrows for a policy [104, 4]. Length is proportional to probability; below 5 % there is no arrow."""
    frame(axes, title, marks=marks)
    state, action = np.nonzero(policy >= SMALLEST_ARROW)
    living = state != four_rooms_mdp.state_index(*four_rooms_mdp.GOAL)
    state, action = state[living], action[living]
    rows, cols = four_rooms_mdp.cells[state].T
    length = 0.62 * policy[state, action]
    return axes.quiver(
        cols, rows, four_rooms_mdp.MOVES[action, 1] * length, four_rooms_mdp.MOVES[action, 0] * length, angles="xy",
        scale_units="xy", scale=1.0, width=0.009, headwidth=4.0, headlength=4.0, headaxislength=3.6, minlength=0.5,
        color="black", zorder=4,
    )  # fmt: skip


def visitation_norm(*visited: np.ndarray) -> LogNorm:
    """A common logarithmic scale for several visitations, from 1/1000 of the maximum to the maximum."""
    top = max(float(v.max()) for v in visited)
    return LogNorm(1e-3 * top, top, clip=True)
