"""The site: built strictly, complete, without anything from the network, and with search that works from disk."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

import nextpolicy
from nextpolicy.cli.main import COMMANDS
from nextpolicy.config import FIELDS
from nextpolicy.config.presets import PRESETS, READINGS
from report.browser import MISSING, Browser

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[2]
WIDE = ("migration", "theory", "performance", "host-environments", "api", "quick-start")  # tables, formulas, code


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built by the command of `make docs`."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    said = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "WARNING" not in said.stdout + said.stderr
    return out


def texts(site: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(site.glob("*.html"))}


def test_make_docs_builds_it_strictly() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "mkdocs build --strict" in makefile
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["strict"] is True


class Loaded(HTMLParser):
    """What a page loads: scripts, styles, images, frames. Links that a reader may follow are not loaded."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "video") and given.get("src"):
            self.found.append(str(given["src"]))
        if tag == "link" and given.get("rel") != "canonical":
            self.found.append(str(given["href"]))


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for name, page in texts(site).items():
        for address in Loaded(page).found:
            inside = address.split("?")[0].removeprefix("/")  # 404.html has addresses from the root
            assert not re.match(r"(https?:)?//", address), (name, address)
            assert (site / inside).exists(), (name, address)
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_every_page_is_there(site: Path) -> None:
    written = {path.stem for path in (ROOT / "docs").glob("*.md")}
    made = {"command-line", "configuration", "api", "changelog", "contributing", "404"}
    assert {path.stem for path in site.glob("*.html")} == written | made


def test_the_configuration_reference_has_every_field_and_preset(site: Path) -> None:
    page = texts(site)["configuration.html"]
    for name, info in FIELDS.items():
        assert f'id="{name}"' in page
        assert re.sub(r"\W", "", info.help) in re.sub(r"\W", "", re.sub(r"<[^>]*>|&\w+;", "", page)), name
    section = page[page.index('id="warmup_steps"') :]
    section = re.sub(r"<[^>]*>", " ", section[: section.index('id="reward_clip"')])
    for reading in READINGS.values():
        assert str(reading["brax"]["warmup_steps"]) in section
    section = page[page.index('id="delta_v"') : page.index('id="diff_kind"')]
    for preset, values in PRESETS.items():
        assert f"<th>{preset}</th>" in section
        assert f"<code>{values['delta_v']}</code>" in section
    assert "Default by preset:" in section
    assert "Default: <code>0</code>." in page[page.index('id="rho_min"') : page.index('id="rho_max"')]


def test_the_command_line_reference_has_every_command_and_option(site: Path) -> None:
    page = texts(site)["command-line.html"]
    for name, command in COMMANDS.items():
        module = import_module(f"nextpolicy.cli.{command.module}")
        parsers = {f"{name}-{part}": make for part, make in getattr(module, "PARSERS", {}).items()}
        for anchor, make in (parsers or {name: module.parser}).items():
            section = page[page.index(f'<h{3 if parsers else 2} id="{anchor}">') :]
            rows = re.findall(r"<tr>\s*<td>(.*?)</td>", re.split(r"<h[23] ", section[1:])[0], flags=re.DOTALL)
            listed = {re.sub(r"<[^>]*>", "", row).split()[0] for row in rows}
            for action in make()._actions:
                if action.dest not in ("help", *FIELDS):
                    assert (action.option_strings or [action.metavar or action.dest.upper()])[0] in listed, anchor
    assert "Default <code>8765</code>" in page


def test_labels_in_the_menu_are_the_titles_of_pages(site: Path) -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    entries = [pair for section in menu for value in section.values() if isinstance(value, list) for pair in value]
    for label, name in (item for entry in entries for item in entry.items()):
        title = re.search(r"<h1[^>]*>(.*?)<a ", texts(site)[name.replace(".md", ".html")], flags=re.DOTALL)
        assert title is not None
        assert title[1] == label


def test_the_api_reference_has_every_public_name(site: Path) -> None:
    page = texts(site)["api.html"]
    for name in set(nextpolicy.__all__) - {"__version__"}:
        assert f'id="{name}"' in page
    for name in set(inspect.signature(nextpolicy.train).parameters) - {"fields"}:
        assert f"<td><code>{name}</code></td>" in page[page.index('id="train"') : page.index('id="resume"')]
    for name in ("Run.evaluate", "Run.metrics", "EvaluateEvery", "Policy.apply", "Criterion.update"):
        assert f'id="{name}"' in page


def test_formulas_pictures_and_links_are_those_of_the_site(site: Path) -> None:
    pages = texts(site)
    assert pages["theory.html"].count("<math ") > 50
    assert "arithmatex" not in pages["theory.html"]
    assert pages["pictures.html"].count('class="np"') == 4
    assert "results/four-rooms/figures/learning-curves.png" in pages["four-rooms.html"]
    assert (site / "results/four-rooms/figures/learning-curves.png").is_file()
    assert "blob/main/src/nextpolicy/loop/round.py" in pages["architecture.html"]
    assert 'href="configuration.html#delta_v"' in pages["choosing.html"]
    assert "\\|" not in re.sub(r"<pre.*?</pre>", "", pages["criteria.html"], flags=re.DOTALL)


def test_bars_lose_their_backslash_in_code_and_only_there() -> None:
    """Between two pieces of code, a bare bar would start another cell."""
    sys.path.insert(0, str(ROOT / "tools" / "site"))
    try:
        import hooks
    finally:
        sys.path.pop(0)
    row = "| `a \\| b` | mean of \\|y\\|, or `c` |"
    assert hooks._with_bare_bars(row) == "| `a | b` | mean of \\|y\\|, or `c` |"


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "assets").glob("*.svg")), ids=lambda p: p.stem)
def test_pictures_are_whole_drawings_in_both_colours(picture: Path) -> None:
    """GitHub shows the file itself, by the colours of the system."""
    text = picture.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.attrib["class"] == "np"
    assert "prefers-color-scheme:dark" in text
    assert set(re.findall(r"var\((--\w+)\)", text)) <= set(re.findall(r"(--\w+):", text))
    assert not re.search(r"href|url\(|#[0-9a-f]{6}", text[text.index("</style>") :]), "colours are variables"
    width = float(root.attrib["viewBox"].split()[2])
    assert all(0 <= float(e.attrib["x"]) <= width for e in root.iter() if "x" in e.attrib)


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_search_works_from_disk_and_asks_for_nothing(site: Path) -> None:
    browser = Browser(1280, 900)
    try:
        browser.open((site / "index.html").as_uri())
        browser.wait("return document.querySelector('[data-md-component=search-query]') !== null")
        browser.run(
            "const q = document.querySelector('[data-md-component=search-query]'); q.focus(); q.value = 'kl_drift';"
            "q.dispatchEvent(new Event('input', {bubbles: true})); q.dispatchEvent(new KeyboardEvent('keyup'))"
        )
        found = "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.href).join(' ')"
        assert "reading-a-run.html" in browser.wait(found)
        assert [address for address in browser.requests() if not address.startswith(("file:", "data:"))] == []
        assert browser.console() == []
    finally:
        browser.close()


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_no_page_is_wider_than_a_phone(site: Path) -> None:
    browser = Browser(390, 844)
    try:
        for name in WIDE:
            browser.open((site / f"{name}.html").as_uri())
            assert browser.run("return document.documentElement.scrollWidth") <= 390, name
    finally:
        browser.close()
