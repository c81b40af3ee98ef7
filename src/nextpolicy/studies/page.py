"""A self-contained HTML page: text, tables and figures in one file that needs no network.

Text may have formulas between dollars (`mathml`). Figures are inline SVG whose colours follow the page, light or dark.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nextpolicy.report import embed, palette
from nextpolicy.report.drawing import render
from nextpolicy.runfiles import write_whole
from nextpolicy.studies.mathml import inline, plain

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
# Colours of matplotlib's figures -> variables of the page.
_THEME = {colour: f"var(--c{i})" for i, colour in enumerate(palette.COLOURS)}
_THEME |= {
    "#000000": "var(--ink)",
    "#ffffff": "var(--paper)",
    "#3b3b3b": "var(--wall)",
    "#e4e4e4": "var(--line)",
    "#999999": "var(--soft-ink)",
}


class Page:
    """Collects parts in order; `write` writes the file."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []
        self.styles, self.scripts = [asset("page.css")], list[str]()

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{inline(text)}</h2>")

    def text(self, text: str, kind: str = "") -> None:
        self.parts.append(f'<p class="{kind}">{inline(text)}</p>' if kind else f"<p>{inline(text)}</p>")

    def verdict(self, text: str) -> None:
        """What the next figure shows, in one sentence."""
        self.text(text, "verdict")

    def numbers(self, lines: Sequence[str]) -> None:
        self.parts.append(f"<ol>{''.join(f'<li>{inline(line)}</li>' for line in lines)}</ol>")

    def table(self, rows: Sequence[dict[str, Any]]) -> None:
        """A table of rows with equal keys, which become the column headings."""
        head = "".join(f'<th scope="col">{inline(str(k))}</th>' for k in rows[0])
        body = "".join("<tr>" + "".join(f"<td>{inline(show(v))}</td>" for v in r.values()) + "</tr>" for r in rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        label = html.escape(plain(str(next(iter(rows[0])))))
        self.parts.append(f'<div class="scroll" tabindex="0" role="region" aria-label="Table by {label}">{table}</div>')

    def figure(self, drawn: Sequence[str], caption: str, kind: str = "") -> None:
        """Drawings (SVG) side by side where there is room, over their caption."""
        panels = "".join(f'<div class="panel">{each}</div>' for each in drawn)
        label = html.escape(plain(caption))
        self.parts.append(
            f'<figure class="{kind}" role="group" aria-label="{label}"><div class="panels">{panels}</div>'
            f"<figcaption>{inline(caption)}</figcaption></figure>"
        )

    @contextmanager
    def folded(self, summary: str) -> Iterator[None]:
        """What is added inside is folded below `summary`."""
        self.parts.append(f"<details><summary>{inline(summary)}</summary>")
        yield
        self.parts.append("</details>")

    def interactive(self, markup: str, data: object, *assets: str) -> None:
        """Markup with the scripts and styles of `assets`; scripts find `data` as JSON in the element `data`."""
        self.parts.append(f"{markup}\n{embed.data_element(data)}")
        self.styles += [asset(name) for name in assets if name.endswith(".css")]
        self.scripts += [embed.asset("svg.js"), *(asset(name) for name in assets if name.endswith(".js"))]

    def write(self, path: Path) -> None:
        title = html.escape(self.title)
        scripts = "".join(f"<script>\n{script}</script>\n" for script in self.scripts)
        page = (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><link rel="icon" href="data:,">\n'
            f"<style>\n{palette.css()}{''.join(self.styles)}</style></head>\n"
            f"<body><h1>{title}</h1>\n" + "\n".join(self.parts) + f"\n{scripts}</body></html>\n"
        )
        write_whole(path, page.encode())


def asset(name: str) -> str:
    return (resources.files("nextpolicy.studies") / "assets" / name).read_text(encoding="utf-8")


def show(value: Any) -> str:
    """Floats with four significant digits, other values by `str`."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def save_figure(figure: Figure, folder: Path, name: str) -> None:
    """Write name.png and name.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, content in render(figure, dpi=120).items():
        write_whole(folder / f"{name}.{kind}", content)


def themed(figure: Figure, name: str) -> str:
    """The figure as inline SVG: transparent, in the colours of the page, with ids of its own (`name`)."""
    drawn = render(figure, kinds=("svg",), facecolor="none")["svg"].decode()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.S)
    drawn = re.sub(r' xmlns(:xlink)?="[^"]*"', "", drawn).replace("xlink:href", "href")
    # Hundredths of a point are enough.
    drawn = re.sub(r'\b[dxy]="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), drawn)
    drawn = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", drawn)
    width = re.search(r'<svg width="([\d.]+)pt" height="[\d.]+pt"', drawn)
    assert width is not None
    drawn = drawn.replace(width[0], f'<svg aria-hidden="true" style="--width: {float(width[1]):.0f}pt"', 1)
    for colour, variable in _THEME.items():
        drawn = drawn.replace(colour, variable)
    return drawn
