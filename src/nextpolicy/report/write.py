"""Write a report: one page, and tables and figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from nextpolicy.report import formats, html, layout, text
from nextpolicy.report.baseline import worded
from nextpolicy.report.comparable import load_all
from nextpolicy.report.files import check_own, write_own
from nextpolicy.report.runs import ReportError
from nextpolicy.report.statistic import Column
from nextpolicy.report.tables import Comparison, compare

_UNIT = "in percent or multiples of PPO"


def write_report(
    paths: Sequence[str], out: Path, folder: Path | None, title: str, *, allow_mixed: bool, allow_gaps: bool
) -> None:
    """Write the page to `out` and, unless `folder` is None, tables and figures to `folder`."""
    _check_places(out, folder)
    comparison = compare(load_all(paths, allow_mixed=allow_mixed, allow_gaps=allow_gaps))
    contents: dict[Path, str | bytes] = {out: html.page(comparison, title)}
    if folder is not None:
        contents |= _files(comparison, folder)
    write_own(contents)
    print(f"page: {out} ({out.stat().st_size / 1e6:.2f} MB, {text.count(len(comparison.runs), 'run')})")
    if comparison.varied:
        print(f"settings that differ between environments: {', '.join(comparison.varied)}")
    if comparison.mixed:
        print(f"mixed: runs differ in {', '.join(comparison.mixed)}")
    if folder is not None:
        print(f"tables and figures: {folder} ({len(contents) - 1} files)")


def _check_places(out: Path, folder: Path | None) -> None:
    """Fail early, before runs are read, if the files cannot be written."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ReportError(f"out: expected a file name that ends in .html, got {out}")
    if not out.parent.is_dir():
        raise ReportError(f"out: expected a file in an existing folder, got {out}; create {out.parent} first")
    if out.is_dir():
        raise ReportError(f"out: expected a file, got the folder {out}")
    if folder is not None and any(p.exists() and not p.is_dir() for p in (folder, *folder.parents)):
        raise ReportError(f"files: expected a folder, got {folder}, which is a file or inside one")
    check_own([out])


def _files(comparison: Comparison, folder: Path) -> dict[Path, str | bytes]:
    """Contents of all files beside the page."""
    from nextpolicy.report import drawing, figures

    found: dict[Path, str | bytes] = {folder / name: content for name, content in _tables(comparison).items()}
    stems = figures.all_figures(comparison.runs, comparison.members, comparison.environments)
    names = [folder / f"{stem}.{kind}" for stem in stems for kind in drawing.KINDS]
    check_own([*found, *names])  # before drawing, which takes seconds
    for stem, figure in stems.items():
        found |= {folder / f"{stem}.{kind}": content for kind, content in drawing.render(figure).items()}
    return found


def _tables(comparison: Comparison) -> dict[str, str]:
    """Tables as Markdown, CSV and LaTeX, and what their columns mean: file name -> content."""
    scores, totals = comparison.scores, comparison.totals
    named = {
        f"{suite}-{variant}": (
            table,
            layout.environment_columns(table),
            f"{variant} on {text.suite_name(suite)}, {worded(_UNIT, [variant])}",
        )
        for (suite, variant), table in comparison.environments.items()
    }
    named["scores"] = scores, layout.scores_columns(scores), "Returns of each variant"
    if len(totals):
        about = f"All environments, {worded(_UNIT, totals['variant'])}"
        named["aggregate"] = totals, layout.aggregate_columns(totals), about
    files = {"members.csv": formats.csv(comparison.members)}
    for name, (table, columns, caption) in named.items():
        stem = "".join(c if c.isalnum() or c in "-_.=" else "-" for c in name).strip("-")
        files[f"{stem}.csv"] = formats.csv(table)
        files[f"{stem}.md"] = formats.markdown(table, columns)
        files[f"{stem}.tex"] = formats.latex(table, columns, caption)
    files["columns.md"] = _legends(named)
    return files


def _legends(named: dict[str, tuple[pd.DataFrame, list[Column], str]]) -> str:
    """What the columns mean, once for each kind of table."""
    titles = {"scores": "Returns", "aggregate": "All environments"}
    by_title: dict[str, list[Column]] = {}
    for name, (table, shown, _) in named.items():
        title = titles.get(name) or worded("Each environment, against PPO", table["variant"])
        by_title.setdefault(title, []).extend(shown)
    return "\n".join(formats.legend(title, shown) for title, shown in by_title.items())
