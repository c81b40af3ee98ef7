"""The page of the configuration reference, from the settings dataclasses and the presets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from nextpolicy.config import FIELDS, describe, written
from nextpolicy.config.fields import owner
from nextpolicy.config.presets import PRESETS, READINGS
from nextpolicy.settings import FieldInfo

_SECTIONS = {
    "environment": "Environment and data",
    "net": "Networks",
    "algorithm": "PPO and SV-PPO",
    "criterion": "Criterion",
    "run": "Run",
}
_USED_FOR = {
    "default": "all other environments",
    "four-rooms": "`four-rooms`",
    "minatar": "`gymnax/...-MinAtar`",
    "brax": "`brax/...`",
    "atari": "`atari/...`",
    "playground": "`playground/...`",
    "craftax": "`craftax/...`",
}
_ORDER = ("default", "four-rooms", "minatar", "brax", "atari", "playground", "craftax")


def names() -> list[str]:
    """All fields."""
    return list(FIELDS)


def page() -> str:
    """The Markdown of the page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from (
        "# Configuration",
        "",
        "This page is generated from the code. The same names work in Python (`train(num_envs=64)`), on the command",
        "line (`--num-envs 64`), in suite files and in `config.json`. `nextpolicy train ENV --dry-run` prints the",
        "effective value of every field.",
        "",
        "## Presets {#presets}",
        "",
        "Fields start from a preset. Which one depends on the environment:",
        "",
        "| preset | used for |",
        "|---|---|",
        *(f"| `{name}` | {_USED_FOR[name]} |" for name in _ORDER),
        "",
        "`--preset` (`preset=` in Python and in suite files) takes either of two kinds of names:",
        "",
        "- `corrected` (the default) or `paper`: the two [readings](paper.md) of the paper's settings. On environments",
        "  that the paper does not cover, whose preset is `default`, `playground` or `craftax`, they are an error.",
        "  Where they differ, this page shows both.",
        "- a name of the table above: the settings of those environments, on any environment.",
    )
    for section, title in _SECTIONS.items():
        yield from ("", f"## {title}")
        for info in FIELDS.values():
            if info.section == section:
                yield from _field(info)


def _field(info: FieldInfo) -> Iterator[str]:
    swept = " Can be swept." if info.traced else ""
    yield from ("", f"### `{info.name}` {{#{info.name}}}", "", _escaped(info.help), "")
    if info.name == "env":
        yield f"Takes {_accepted(info)}. It has to be given."
        return
    if info.section == "criterion" and (having := owner(info.name)) != "every criterion":
        yield from (f"Of {having}.", "")
    values = {preset: _in_preset(info.name, preset, info.default) for preset in _ORDER}
    if len(set(values.values())) == 1:
        yield f"Takes {_accepted(info)}. Default: {values['default']}.{swept}"
        return
    yield f"Takes {_accepted(info)}.{swept} Default by preset:"
    yield from ("", f"| {' | '.join(values)} |", f"|{'---|' * len(values)}", f"| {' | '.join(values.values())} |")


def _accepted(info: FieldInfo) -> str:
    """The type of a field and its bounds."""
    if info.low is None:
        return _escaped(describe(info))
    if info.interval:
        return f"{describe(info)} {info.interval}"
    top = "" if info.high == math.inf else f" and at most {info.high:,.12g}"
    return f"{describe(info)} of at least {info.low:,.12g}{top}"


def _in_preset(field: str, preset: str, default: Any) -> str:
    """The value in a preset; two if the readings of the paper differ."""
    plain = PRESETS[preset].get(field, default)
    corrected, paper = (READINGS[reading].get(preset, {}).get(field, plain) for reading in ("corrected", "paper"))
    same = corrected == paper
    return (
        f"`{_shown(field, corrected)}`"
        if same
        else f"`{_shown(field, corrected)}` (corrected), `{_shown(field, paper)}` (paper)"
    )


def _shown(field: str, value: Any) -> str:
    return written(field, value) or "none"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[-x, x]", "\\[-x, x\\]")


assert set(_ORDER) == set(PRESETS), "a new preset needs a column"
