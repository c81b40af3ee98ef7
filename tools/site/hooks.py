"""Hooks of the documentation site (mkdocs.yml).

Pages in docs/ are plain Markdown that GitHub shows as it is. What only the site needs is added here while it is built:
generated pages, files of the repository that pages show or link to, formulas, and links from field names to the
configuration reference.
"""

from __future__ import annotations

import html
import logging
import posixpath
import re
import sys
from pathlib import Path

from latex2mathml.converter import convert as to_mathml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))  # hooks are loaded by path, without their folder

import api_reference
import cli_reference
import config_reference

ROOT = Path(__file__).parents[2]
SOURCE = "https://github.com/nextpolicy/nextpolicy"
# Pages that are not in docs/: where their text comes from.
REPOSITORY_PAGES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
_log = logging.getLogger("mkdocs.hooks.site")  # with `strict`, a warning is an error


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the figures in results/ that pages show."""
    try:
        made = {"configuration.md": config_reference.page(), "api.md": api_reference.page()}
        made["command-line.md"] = cli_reference.page()
    except api_reference.ApiError as error:
        raise PluginError(str(error)) from error
    made |= {name: (ROOT / source).read_text(encoding="utf-8") for name, source in REPOSITORY_PAGES.items()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    shown = {figure for file in files.documentation_pages() for figure in _figures(file.content_string)}
    for figure in sorted(shown):
        files.append(File.generated(config, figure, abs_src_path=str(ROOT / figure)))
    return files


def _figures(text: str) -> list[str]:
    """Figures in results/ that a page shows and that exist; a missing one is a broken link of its page."""
    return [f for f in re.findall(r"!\[[^]]*\]\(\.\./(results/[^)\s]+)\)", text) if (ROOT / f).is_file()]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Resolve links out of docs/: figures are copied, pages of the site are linked, other files are on GitHub."""
    home = "" if page.file.src_uri in REPOSITORY_PAGES else "docs"

    def resolve(match: re.Match[str]) -> str:
        address, anchor = match["address"], match["anchor"] or ""
        if re.match(r"[a-z]+:|/", address):
            return match[0]
        path = posixpath.normpath(posixpath.join(home, address))
        inside = _on_the_site(path, files)
        if inside is not None:
            return f"]({inside}{anchor})"
        if not (ROOT / path).exists():
            _log.warning("%s links to %s, which does not exist", page.file.src_uri, address)
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"]({SOURCE}/{kind}/main/{path}{anchor})"

    markdown = _with_bare_bars(markdown)
    named = r"\[((?:docs/)?([\w-]+\.md))\](?=\(\1)"
    markdown = _outside_code(named, lambda m: f"[{_title(files, m[2])}]", markdown)
    return _outside_code(r"\]\((?P<address>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)", resolve, markdown)


def _with_bare_bars(markdown: str) -> str:
    """Python-Markdown takes a bar in code literally, where GitHub wants it escaped; outside code both want that."""
    return _outside_code(r"`[^`\n]*`", lambda m: m[0].replace("\\|", "|"), markdown)


def _title(files: Files, name: str) -> str:
    """The heading of a page, for links whose text is a file name; the name itself if there is no such page."""
    file = files.get_file_from_path(name)
    heading = re.search(r"^# (.+)$", file.content_string, flags=re.MULTILINE) if file is not None else None
    return heading[1] if heading else name


def _on_the_site(path: str, files: Files) -> str | None:
    """The address of a file of the repository within the site, or None if it is not part of it."""
    pages = {source: name for name, source in REPOSITORY_PAGES.items()}
    inside = pages.get(path) or path.removeprefix("docs/")
    return inside if files.get_file_from_path(inside) is not None else None


def _outside_code(pattern: str, replace: object, markdown: str) -> str:
    """`re.sub` on the lines of a page that are not in a fenced block."""
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(p if i % 2 else re.sub(pattern, replace, p) for i, p in enumerate(parts))  # type: ignore[call-overload]


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML, pictures inline so that they follow the colours of the page, field names as links."""
    content = re.sub(r'<(span|div) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', _formula, content, flags=re.DOTALL)
    content = re.sub(r'<img alt="([^"]*)" src="(?:\.\./)*(assets/[^"]+\.svg)"\s*/?>', _picture, content)
    if page.file.src_uri in ("configuration.md", "api.md"):
        return _with_whole_words(content)
    # The first column of these tables has the names of other libraries.
    theirs = r"|<tr>\s*<td>.*?</td>" if page.file.src_uri == "migration.md" else ""
    return _with_whole_words(_with_field_links(content, rf"<h\d\b.*?</h\d>|<a\b.*?</a>|<pre\b.*?</pre>{theirs}"))


def _formula(match: re.Match[str]) -> str:
    kind = "block" if match[1] == "div" else "inline"
    formula = str(to_mathml(html.unescape(match[2]).strip(), display=kind))
    # As a superscript, a prime would be too small to see.
    return re.sub(r"<msup>(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msup>", r"<mrow>\1<mo>&#x02032;</mo></mrow>", formula)


def _picture(match: re.Match[str]) -> str:
    drawing = (ROOT / "docs" / match[2]).read_text(encoding="utf-8")
    return drawing[drawing.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{match[1]}"', 1)


def _with_field_links(content: str, untouched: str) -> str:
    """Link `<code>field</code>` to the configuration reference, except in what the pattern `untouched` matches."""
    names = "|".join(config_reference.names())
    link = r'<a class="field" href="configuration.html#\1"><code>\1</code></a>'
    parts = re.split(f"({untouched})", content, flags=re.DOTALL)
    return "".join(p if i % 2 else re.sub(rf"<code>({names})</code>", link, p) for i, p in enumerate(parts))


def _with_whole_words(content: str) -> str:
    """Code in running text is broken after `_` and `.` of long names, and not at the hyphens of options."""

    def broken(code: re.Match[str]) -> str:
        whole = re.sub(r"(?<![\w-])[\w-]*-[\w-]{1,24}", r'<span class="whole">\g<0></span>', code[0])
        return re.sub(r"\b[\w.]{18,}", lambda name: re.sub(r"([_.])(?=\w)", r"\1<wbr>", name[0]), whole)

    parts = re.split(r"(<pre\b.*?</pre>)", content, flags=re.DOTALL)
    return "".join(p if i % 2 else re.sub(r"(?<=<code>)[^<]*", broken, p) for i, p in enumerate(parts))
