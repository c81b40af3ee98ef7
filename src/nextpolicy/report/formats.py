"""Tables in languages for documents and spreadsheets: Markdown, LaTeX with booktabs, and CSV."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from nextpolicy.report.text import NOT_IN_PRINT, Column, cells


def markdown(table: pd.DataFrame, columns: Sequence[Column]) -> str:
    """A pipe table."""
    escape = lambda text: " ".join(str(text).replace("|", "\\|").replace("<", "&lt;").split())  # noqa: E731
    lines = [[c[0] for c in columns], ["---"] * len(columns)]
    lines += [[shown for shown, _ in row] for row in cells(table, columns)]
    return "".join("| " + " | ".join(map(escape, line)) + " |\n" for line in lines)


def csv(table: pd.DataFrame) -> str:
    """All columns and digits. A spreadsheet must not run text as a formula: an apostrophe before it makes it text."""
    return table.map(_no_formula).to_csv(index=False)


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else value


_LATEX = {c: f"\\{c}" for c in "&%_#${}"} | {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"$<$", ">": r"$>$", "|": r"$|$", "±": r"$\pm$", "×": r"$\times$", "÷": r"$\div$", "–": "--"},
}


def latex(table: pd.DataFrame, columns: Sequence[Column], caption: str) -> str:
    """A table with booktabs rules, intervals in small below their numbers, never wider than the text; notes below."""
    printed = [c for c in columns if c[0] not in (*NOT_IN_PRINT, "Note")]
    body = [" & ".join(_latex_cell(shown) for shown, _ in row) + r" \\[2pt]" for row in cells(table, printed)]
    head = " & ".join(_stacked(*_escaped(c[0]).split(", ")) for c in printed) + r" \\"
    sides = "".join("l" if c[0] in ("Environment", "Variant", "Suite", "Source") else "r" for c in printed)
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


def _escaped(words: Any) -> str:
    plain = "".join(_LATEX.get(c, c) for c in " ".join(str(words).split()))
    return re.sub(r"(?<![\w.-])-(?=\d)", "$-$", plain)


def _latex_cell(shown: str) -> str:
    """`104.2 ± 3.1 [98.1, 110.0]*`: the interval goes below."""
    found = re.fullmatch(r"(\S+(?: ± \S+)?) (\[.*\])(\*?)", shown)
    if not found:
        return _escaped(shown)
    value, interval, star = found.groups()
    return _stacked(_escaped(value) + star, rf"\scriptsize {_escaped(interval)}")


def _stacked(*lines: str) -> str:
    if len(lines) == 1:
        return lines[0]
    # In braces: LaTeX would take a bracket after a line's end for the height of a gap.
    below = r" \\ ".join(f"{{{line}}}" for line in lines)
    return rf"\begin{{tabular}}[t]{{@{{}}r@{{}}}}{below}\end{{tabular}}"
