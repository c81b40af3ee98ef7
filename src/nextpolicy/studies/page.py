"""A self-contained HTML page: text, tables and figures in one file that needs no network."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nextpolicy.report.drawing import render
from nextpolicy.runfiles import write_whole

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #ffffff; --line: #d4d4d4; --soft: #f4f5f6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16181b; --line: #3a3e44; --soft: #202327; } }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; font: 16px/1.55 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { margin-top: 2.4rem; font-size: 1.25rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { background: var(--soft); }
figure { margin: 1.2rem 0; } figure img { width: 100%; height: auto; background: #fff; border-radius: 4px; }
figcaption { font-size: .9rem; opacity: .85; } code { background: var(--soft); padding: 0 .25em; }
ol.numbers { background: var(--soft); padding: .9rem .9rem .9rem 2.4rem; border-radius: 6px; }
"""


class Page:
    """Collects parts in order; `write` writes the file."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        self.parts.append(f"<p>{html.escape(text)}</p>")

    def numbers(self, lines: Sequence[str]) -> None:
        items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
        self.parts.append(f'<ol class="numbers">{items}</ol>')

    def table(self, rows: Sequence[dict[str, Any]]) -> None:
        """A table of rows with equal keys, which become the column headings."""
        head = "".join(f"<th>{html.escape(str(k))}</th>" for k in rows[0])
        body = "".join("<tr>" + "".join(f"<td>{html.escape(show(v))}</td>" for v in r.values()) + "</tr>" for r in rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        self.parts.append(f'<div class="scroll">{table}</div>')

    def figure(self, png: bytes, caption: str) -> None:
        data = base64.b64encode(png).decode()
        words = html.escape(caption)
        image = f'<img alt="{words}" src="data:image/png;base64,{data}">'
        self.parts.append(f"<figure>{image}<figcaption>{words}</figcaption></figure>")

    def write(self, path: Path) -> None:
        title = html.escape(self.title)
        page = (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
            f"<body><h1>{title}</h1>\n" + "\n".join(self.parts) + "\n</body></html>\n"
        )
        write_whole(path, page.encode())


def show(value: Any) -> str:
    """Floats with four significant digits, other values by `str`."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def save_figure(figure: Figure, folder: Path, name: str) -> bytes:
    """Write name.png and name.svg, and return the PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    files = render(figure, dpi=120)
    for kind, content in files.items():
        write_whole(folder / f"{name}.{kind}", content)
    return files["png"]
