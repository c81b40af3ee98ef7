"""`nextpolicy report PATH... --out report.html`: the page, and beside it the tables and figures as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nextpolicy.report import formats, html, text
from nextpolicy.report.comparable import load_all
from nextpolicy.report.files import check_own, write_own
from nextpolicy.report.runs import ReportError
from nextpolicy.report.tables import Comparison, compare


def main(arguments: Sequence[str], make_parser: Callable[..., Any], parse: Callable[..., Any]) -> None:
    """Write the report, or serve it while runs go on."""
    parser = make_parser(prog="nextpolicy report", description="Tables, figures and a page from run folders.")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="Run folders, or folders that hold them.")
    parser.add_argument("--out", default="report.html", help="The page; default report.html.")
    parser.add_argument(
        "--files", help="Folder for tables (md, csv, tex) and figures (svg, png); default beside --out."
    )
    parser.add_argument("--page-only", action="store_true", help="The page alone, no tables and figures.")
    parser.add_argument("--title", default="", help="Heading of the page; by default it says what is compared.")
    parser.add_argument("--allow-mixed", action="store_true", help="Compare runs even if their settings differ.")
    words = "Draw runs whose metrics have gaps; they get no statistics."
    parser.add_argument("--allow-gaps", action="store_true", help=words)
    parser.add_argument("--watch", action="store_true", help="Serve the page on this machine and renew it; no files.")
    parser.add_argument("--port", type=int, default=8765, help="Port of --watch on 127.0.0.1; 0 takes a free one.")
    options = parse(parser, arguments)
    allowed = {"allow_mixed": options.allow_mixed, "allow_gaps": options.allow_gaps}
    if options.watch:
        from nextpolicy.report import watch

        watch.serve(options.paths, options.title, options.port, **allowed)
        return
    out = Path(options.out)
    folder = Path(options.files) if options.files else out.with_name(f"{out.stem}-files")
    _check_places(out, None if options.page_only else folder)
    comparison = compare(load_all(options.paths, **allowed))
    contents: dict[Path, str | bytes] = {out: html.page(comparison, options.title)}
    if not options.page_only:
        contents |= _files(comparison, folder)
    write_own(contents)
    print(f"page: {out} ({out.stat().st_size / 1e6:.2f} MB, {text.count(len(comparison.runs), 'run')})")
    if comparison.varied:
        print(f"settings that differ between environments: {', '.join(comparison.varied)}")
    if comparison.mixed:
        print(f"mixed: runs are not alike in {', '.join(comparison.mixed)}")
    if not options.page_only:
        print(f"tables and figures: {folder} ({len(contents) - 1} files)")


def _check_places(out: Path, folder: Path | None) -> None:
    """Refuse what cannot be written to, before runs are read."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ReportError(f"out: got {out}, takes a file name that ends in .html")
    if not out.parent.is_dir():
        raise ReportError(f"out: {out.parent} is not a folder")
    if out.is_dir():
        raise ReportError(f"out: {out} is a folder, takes a file")
    if folder is not None and any(p.exists() and not p.is_dir() for p in (folder, *folder.parents)):
        raise ReportError(f"files: {folder} is a file or in one, takes a folder")
    check_own([out])


def _files(comparison: Comparison, folder: Path) -> dict[Path, str | bytes]:
    """Tables as Markdown, CSV and LaTeX, figures as SVG and PNG."""
    from nextpolicy.report import drawing, figures

    found: dict[Path, str | bytes] = {folder / name: content for name, content in _tables(comparison).items()}
    stems = figures.all_figures(comparison.runs, comparison.members, comparison.environments)
    names = [folder / f"{stem}.{kind}" for stem in stems for kind in drawing.KINDS]
    check_own([*found, *names])  # drawing takes seconds
    for stem, figure in stems.items():
        found |= {folder / f"{stem}.{kind}": content for kind, content in drawing.drawn(figure).items()}
    return found


def _tables(comparison: Comparison) -> dict[str, str]:
    """File name -> content."""
    scores, totals = comparison.scores, comparison.totals
    named = {
        f"{suite}-{variant}": (
            table,
            text.environment_columns(table),
            f"{variant} on {text.SUITE_NAMES.get(suite, suite)}, in percent or multiples of PPO",
        )
        for (suite, variant), table in comparison.environments.items()
    }
    named["scores"] = scores, text.scores_columns(scores), "Returns of each variant"
    if len(totals):
        about = "All environments, in percent or multiples of PPO"
        named["aggregate"] = totals, text.aggregate_columns(totals), about
    files = {"members.csv": formats.csv(comparison.members)}
    for name, (table, columns, caption) in named.items():
        stem = "".join(c if c.isalnum() or c in "-_.=" else "-" for c in name).strip("-")
        files[f"{stem}.csv"] = formats.csv(table)
        files[f"{stem}.md"] = formats.markdown(table, columns)
        files[f"{stem}.tex"] = formats.latex(table, columns, caption)
    return files
