"""`nextpolicy report PATH... --out report.html`: the page, and beside it the tables and figures as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nextpolicy.report import formats, html, text
from nextpolicy.report.comparable import load_all
from nextpolicy.report.files import write
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
    parser.add_argument("--title", default="Stable-Value PPO against PPO", help="Heading of the page.")
    parser.add_argument("--allow-mixed", action="store_true", help="Compare runs even if their settings differ.")
    parser.add_argument("--watch", action="store_true", help="Serve the page on this machine and renew it; no files.")
    parser.add_argument("--port", type=int, default=8765, help="Port of --watch on 127.0.0.1; 0 takes a free one.")
    options = parse(parser, arguments)
    if options.watch:
        from nextpolicy.report import watch

        watch.serve(options.paths, options.title, options.port, allow_mixed=options.allow_mixed)
        return
    out = Path(options.out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise ReportError(f"out: got {out}, takes a file name that ends in .html")
    if not out.parent.is_dir():
        raise ReportError(f"out: {out.parent} is not a folder")
    if out.is_dir():
        raise ReportError(f"out: {out} is a folder, takes a file")
    folder = Path(options.files) if options.files else out.with_name(f"{out.stem}-files")
    if not options.page_only and any(p.exists() and not p.is_dir() for p in (folder, *folder.parents)):
        raise ReportError(f"files: {folder} is a file or in one, takes a folder")
    comparison = compare(load_all(options.paths, allow_mixed=options.allow_mixed))
    write(out, html.page(comparison, options.title))
    count = len(comparison.runs)
    print(f"page: {out} ({out.stat().st_size / 1e6:.2f} MB, {count} run{'s' * (count != 1)})")
    if comparison.mixed:
        print(f"mixed: runs are not alike in {', '.join(comparison.mixed)}")
    if not options.page_only:
        print(f"tables and figures: {folder} ({write_files(comparison, folder)} files)")


def write_files(comparison: Comparison, folder: Path) -> int:
    """Tables as Markdown, CSV and LaTeX, figures as SVG and PNG; how many files there are."""
    from nextpolicy.report import figures

    folder.mkdir(parents=True, exist_ok=True)
    runs, members, by_key, totals, _ = comparison
    before = {"members.csv": members.to_csv(index=False)}
    named = {
        f"{suite}-{variant}": (table, text.environment_columns(table)) for (suite, variant), table in by_key.items()
    }
    captions = {f"{s}-{v}": f"{v} on {text.SUITE_NAMES.get(s, s)}, in percent or multiples of PPO" for s, v in by_key}
    if len(totals):
        named["aggregate"] = totals, text.aggregate_columns(totals)
        captions["aggregate"] = "All environments, in percent or multiples of PPO"
    for name, (table, columns) in named.items():
        stem = "".join(c if c.isalnum() or c in "-_.=" else "-" for c in name).strip("-")
        before[f"{stem}.csv"] = table.to_csv(index=False)
        before[f"{stem}.md"] = formats.markdown(table, columns)
        before[f"{stem}.tex"] = formats.latex(table, columns, captions[name])
    for name, content in before.items():
        write(folder / name, content)
    return len(before) + figures.write_all(runs, members, by_key, folder)
