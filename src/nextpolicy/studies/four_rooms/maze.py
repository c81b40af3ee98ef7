"""Drawing on the Four Rooms map: heat maps, signed maps and policy arrows, readable without colour."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm, Normalize

from nextpolicy.tabular import four_rooms_mdp

WALL = "#3b3b3b"
SEQUENTIAL = "viridis"  # grows lighter all along: reads the same in grey
SIGNED = "PuOr"  # the sign is drawn as a mark as well, since in grey both ends are dark
SMALLEST_ARROW = 0.05


def frame(axes: Axes, title: str = "", *, start: tuple[int, int] | None = None, marks: bool = True) -> None:
    """Walls, start and goal; row 0 at the top."""
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
            # A little up and left: the arrow or colour of the cell stays visible.
            shift = 0.0 if letter == "G" else 0.25
            axes.text(col - shift, row - shift, letter, fontsize=5.5, weight="bold", **where)


def _grid(values: np.ndarray) -> np.ndarray:
    """The map of numbers per state, blank at the goal, where nothing happens any more."""
    grid = four_rooms_mdp.as_grid(values)
    grid[four_rooms_mdp.GOAL] = np.nan
    return grid


def heat(axes: Axes, values: np.ndarray, norm: Normalize, title: str = "", marks: bool = True) -> Any:
    """Numbers per state [104] on the map; the image, for a colour bar."""
    image = axes.imshow(_grid(values), cmap=SEQUENTIAL, norm=norm, interpolation="none", zorder=0)
    frame(axes, title, marks=marks)
    return image


def signed(axes: Axes, values: np.ndarray, limit: float, title: str = "", marks: bool = True) -> Any:
    """Signed numbers [104], white at 0; cells beyond a tenth of `limit` carry a + or a -."""
    norm = Normalize(-limit, limit)
    image = axes.imshow(_grid(values), cmap=SIGNED, norm=norm, interpolation="none", zorder=0)
    frame(axes, title, marks=marks)
    rows, cols = four_rooms_mdp.cells.T
    # White on the dark ends, black on the pale middle.
    for symbol, chosen in (("+", values > 0.1 * limit), ("_", values < -0.1 * limit)):
        colour = np.where(np.abs(values[chosen]) > 0.6 * limit, "white", "black")
        axes.scatter(cols[chosen], rows[chosen], marker=symbol, c=colour, s=10, linewidths=0.8, zorder=3)
    return image


def arrows(axes: Axes, policy: np.ndarray, title: str = "", marks: bool = True) -> Any:
    """An arrow per state and action [104, 4], as long as the action is likely; below 5 % none."""
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
    """One logarithmic scale for several visitations: from a thousandth of the largest to the largest."""
    top = max(float(v.max()) for v in visited)
    return LogNorm(1e-3 * top, top, clip=True)
