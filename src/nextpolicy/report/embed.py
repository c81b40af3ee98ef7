"""What pages with scripts embed: files of `assets`, and data."""

from __future__ import annotations

import json
from importlib import resources


def asset(name: str) -> str:
    """The text of a file in `assets`."""
    return (resources.files("nextpolicy.report") / "assets" / name).read_text(encoding="utf-8")


def data_element(data: object) -> str:
    """`data` as JSON in the element `data`, which scripts read. No text in it can end the element."""
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="data">{plain}</script>'
