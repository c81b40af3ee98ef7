"""Data in a page cannot end the element that holds it."""

from __future__ import annotations

import json

from nextpolicy.report import embed


def test_data_keep_their_text_and_stay_in_their_element() -> None:
    data = {"name": "</script><script>alert(1)</script><!--", "values": [1.5, None]}
    element = embed.data_element(data)
    start, end = '<script type="application/json" id="data">', "</script>"
    assert element.startswith(start)
    assert element.endswith(end)
    inside = element.removeprefix(start).removesuffix(end)
    assert "<" not in inside
    assert json.loads(inside) == data
