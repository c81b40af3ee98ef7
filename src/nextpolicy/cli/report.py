"""`nextpolicy report PATH...`: tables, figures and a page from run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nextpolicy.cli.parsing import Parser


def parser() -> Parser:
    """The parser of the command."""
    made = Parser(prog="nextpolicy report", description="Tables, figures and a page from run folders.")
    made.add_argument("paths", nargs="+", metavar="PATH", help="Run folders, or folders that contain some.")
    made.add_argument("--out", default="report.html", help="The page; default report.html.")
    made.add_argument("--files", help="Folder for tables (md, csv, tex) and figures (svg, png); default next to --out.")
    made.add_argument("--page-only", action="store_true", help="Write no tables and figures.")
    made.add_argument("--title", default="", help="Heading of the page; by default, what is compared.")
    made.add_argument("--allow-mixed", action="store_true", help="Compare runs even if their settings differ.")
    text = "Plot runs with missing metrics; they are excluded from the statistics."
    made.add_argument("--allow-gaps", action="store_true", help=text)
    made.add_argument("--watch", action="store_true", help="Serve a live page on this machine; write no files.")
    made.add_argument("--port", type=int, default=8765, help="Port of --watch on 127.0.0.1; 0 picks a free one.")
    text = "Write small copies of finished runs to this folder instead; a report on them is the same."
    made.add_argument("--compact", metavar="FOLDER", help=text)
    return made


def main(arguments: Sequence[str]) -> None:
    """Write the report, or serve a live page."""
    made = parser()
    options = made.parse(arguments)
    allowed = {"allow_mixed": options.allow_mixed, "allow_gaps": options.allow_gaps}
    if options.compact is not None:
        given = [name for name in ("watch", "page_only", "files", "title", "allow_gaps") if getattr(options, name)]
        if given:
            made.error(f"--compact: expected no other options, got --{given[0].replace('_', '-')}")
        if not options.compact:
            made.error("--compact: expected a folder, got an empty name")
        from nextpolicy.report import compact

        compact.write_copies(options.paths, Path(options.compact))
        return
    if options.watch:
        from nextpolicy.report import watch

        watch.serve(options.paths, options.title, options.port, **allowed)
        return
    from nextpolicy.report import write

    out = Path(options.out)
    folder = Path(options.files) if options.files else out.with_name(f"{out.stem}-files")
    write.write_report(options.paths, out, None if options.page_only else folder, options.title, **allowed)
