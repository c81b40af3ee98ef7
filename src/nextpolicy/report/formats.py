"""Tables as Markdown, LaTeX with booktabs, and CSV."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from nextpolicy.report.baseline import worded
from nextpolicy.report.layout import cells, explanations
from nextpolicy.report.statistic import Column


def markdown(table: pd.DataFrame, columns: Sequence[Column]) -> str:
    """A pipe table."""
    lines = [[c.heading for c in columns], ["---"] * len(columns)]
    lines += [[cell.shown for cell in row] for row in cells(table, columns)]
    return "".join("| " + " | ".join(map(_markdown_escaped, line)) + " |\n" for line in lines)


def _markdown_escaped(words: str) -> str:
    return " ".join(words.replace("|", "\\|").replace("<", "&lt;").split())


def legend(title: str, columns: Sequence[Column]) -> str:
    """What each column means, as Markdown."""
    lines = [f"- **{heading}**: {_markdown_escaped(about)}" for heading, about in explanations(columns).items()]
    return "\n".join([f"## {title}", "", *lines, ""])


def csv(table: pd.DataFrame) -> str:
    """All columns and digits; text that a spreadsheet would run as a formula gets an apostrophe before it."""
    named = table.rename(columns=lambda name: worded(name, table["variant"]))
    return named.map(_no_formula).to_csv(index=False)


def _no_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else value


_LATEX = {c: f"\\{c}" for c in "&%_#${}"} | {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"$<$", ">": r"$>$", "|": r"$|$", "±": r"$\pm$", "×": r"$\times$", "÷": r"$\div$", "–": "--"},
}


def latex(table: pd.DataFrame, columns: Sequence[Column], caption: str) -> str:
    """A booktabs table scaled to the text width, with intervals below their numbers and notes below the table."""
    printed = [c for c in columns if c.in_print and c.kind != "note"]
    body = [" & ".join(_latex_cell(cell.shown) for cell in row) + r" \\[2pt]" for row in cells(table, printed)]
    head = " & ".join(_stacked(*_escaped(c.heading).split(", ")) for c in printed) + r" \\"
    sides = "".join("l" if c.kind == "text" else "r" for c in printed)
    notes = [f"{row['env']}: {row['note']}." for row in table.to_dict("records") if row.get("note")]
    return "\n".join(
        [
            r"% \usepackage{booktabs,graphicx}",
            r"\begin{table}",
            r"\centering\small\setlength{\tabcolsep}{4pt}",
            rf"\caption{{{_escaped(caption)}}}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{@{{}}{sides}@{{}}}}",
            *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
            r"\end{tabular}}",
            *(rf"\par\smallskip{{\footnotesize {_escaped(note)}}}" for note in notes),
            r"\end{table}",
            "",
        ]
    )


def _escaped(words: str) -> str:
    plain = "".join(_LATEX.get(c, c) for c in " ".join(words.split()))
    return re.sub(r"(?<![\w.-])-(?=\d)", "$-$", plain)


def _latex_cell(shown: str) -> str:
    """`104.2 ± 3.1 [98.1, 110.0]*` with the interval on a second line."""
    found = re.fullmatch(r"(\S+(?: ± \S+)?) (\[.*\])(\*?)", shown)
    if not found:
        return _escaped(shown)
    value, interval, star = found.groups()
    return _stacked(_escaped(value) + star, rf"\scriptsize {_escaped(interval)}")


def _stacked(*lines: str) -> str:
    if len(lines) == 1:
        return lines[0]
    # Braces, because LaTeX reads a bracket after a line break as the height of a gap.
    below = r" \\ ".join(f"{{{line}}}" for line in lines)
    return rf"\begin{{tabular}}[t]{{@{{}}r@{{}}}}{below}\end{{tabular}}"
