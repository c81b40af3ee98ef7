"""Frames of environments whose own libraries draw nothing without a display: MinAtar and Brax."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_PIXELS = 24  # per cell of a MinAtar screen
# Colours of up to ten channels on a black background; they differ in lightness, so they can be told apart in grey.
_CHANNELS = np.asarray(
    [
        (230, 230, 230),
        (86, 180, 233),
        (230, 159, 0),
        (0, 158, 115),
        (240, 228, 66),
        (204, 121, 167),
        (213, 94, 0),
        (0, 114, 178),
        (140, 140, 140),
        (90, 60, 160),
    ],
    np.uint8,
)
_SIZE = (320, 240)  # width and height of a Brax frame
_FINE = 2  # a frame is drawn this many times larger, then reduced, for smooth edges
_SKY, _GROUND, _GRID = (246, 248, 250), (222, 226, 230), (200, 205, 212)
_SPHERE, _CAPSULE = 2, 3  # MuJoCo's geometry types


def screen(obs: np.ndarray) -> np.ndarray:
    """A MinAtar observation, bool [10, 10, C], as an image, uint8 [240, 240, 3]; later channels cover earlier ones."""
    image = np.zeros((*obs.shape[:2], 3), np.uint8)
    for channel in range(obs.shape[2]):
        image[obs[..., channel] > 0] = _CHANNELS[channel % len(_CHANNELS)]
    return image.repeat(_PIXELS, axis=0).repeat(_PIXELS, axis=1)


def rotate(vector: np.ndarray, quaternion: np.ndarray) -> np.ndarray:
    """`vector` [3] rotated by a unit quaternion (w, x, y, z): v + 2 w (u x v) + 2 u x (u x v)."""
    w, u = quaternion[0], quaternion[1:]
    turned = np.cross(u, vector)
    return vector + 2 * w * turned + 2 * np.cross(u, turned)


def capsules(
    model: object, position: np.ndarray, rotation: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, float, np.ndarray]]:
    """Both ends [3], radius and colour of each visible capsule; a sphere is a capsule of no length.

    `model` is a MuJoCo model, `position` [L, 3] and `rotation` [L, 4] are those of its bodies 1 to L in the world.
    """
    made = []
    for i in range(model.ngeom):  # type: ignore[attr-defined]
        kind, size, body = (getattr(model, f"geom_{name}")[i] for name in ("type", "size", "bodyid"))
        if kind not in (_SPHERE, _CAPSULE) or model.geom_rgba[i][3] == 0:  # type: ignore[attr-defined]
            continue
        centre, turn = np.asarray(model.geom_pos[i]), np.asarray(model.geom_quat[i])  # type: ignore[attr-defined]
        half = rotate(np.array([0.0, 0.0, size[1] if kind == _CAPSULE else 0.0]), turn)
        ends = [centre - half, centre + half]
        if body > 0:
            ends = [position[body - 1] + rotate(end, rotation[body - 1]) for end in ends]
        colour = (255 * np.asarray(model.geom_rgba[i][:3])).astype(np.uint8)  # type: ignore[attr-defined]
        made.append((*ends, float(size[0]), colour))
    return made


class View(NamedTuple):
    """How a Brax task is seen: metres from the lower to the upper edge, from the side or from above.

    From the side the camera follows body 1 along x, and the ground is at a fifth of the height. From above it looks at
    `centre`.
    """

    height: float
    above: bool = False
    centre: tuple[float, float] = (0.0, 0.0)


VIEWS = {
    "inverted_pendulum": View(1.6),
    "inverted_double_pendulum": View(1.9),
    "hopper": View(2.2),
    "walker2d": View(2.2),
    "halfcheetah": View(2.2),
    "ant": View(2.4),
    "humanoid": View(2.6),
    "humanoidstandup": View(2.6),
    "reacher": View(0.68, above=True),
    "pusher": View(2.2, above=True, centre=(0.4, -0.2)),
    "swimmer": View(4.0, above=True),
}


def body(model: object, position: np.ndarray, rotation: np.ndarray, view: View) -> np.ndarray:
    """A Brax system, uint8 [240, 320, 3]; far capsules are drawn first, and lines on the ground are 1 apart."""
    from PIL import Image, ImageDraw

    width, height = (_FINE * side for side in _SIZE)
    scale = height / view.height
    across, up, depth = (0, 1, 2) if view.above else (0, 2, 1)
    left, low = view.centre if view.above else (float(position[0][0]), 0.0)
    base = height / 2 if view.above else 0.8 * height

    def place(point: np.ndarray) -> tuple[float, float]:
        return width / 2 + scale * (float(point[across]) - left), base - scale * (float(point[up]) - low)

    image = Image.new("RGB", (width, height), _GROUND if view.above else _SKY)
    draw = ImageDraw.Draw(image)
    if not view.above:
        draw.rectangle((0, base, width, height), fill=_GROUND)
        for metre in range(int(left - width / scale) - 1, int(left + width / scale) + 2):
            at = place(np.array([metre, 0.0, 0.0]))[0]
            draw.line((at, base, at, height), fill=_GRID, width=_FINE)
    towards = 1 if view.above else -1
    for first, second, radius, colour in sorted(
        capsules(model, position, rotation), key=lambda shape: towards * float((shape[0] + shape[1])[depth])
    ):
        (a, b), (c, d), r, fill = place(first), place(second), max(scale * radius, 1.5), tuple(map(int, colour))
        draw.line((a, b, c, d), fill=fill, width=max(round(2 * r), 1))
        for x, y in ((a, b), (c, d)):
            draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)
    return np.asarray(image.resize(_SIZE, Image.Resampling.LANCZOS))
