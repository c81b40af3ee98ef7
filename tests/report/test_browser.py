"""The page in real Chromium: nothing is fetched, nothing is complained of, and every switch does what it says."""

from __future__ import annotations

import base64
import itertools
import threading
import time

import pytest

from nextpolicy.cli import main as cli
from nextpolicy.report import watch

from .browser import MISSING, Browser
from .synthetic import lively, write_run

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

ENVS = ("ant", "hopper", "reacher")
BASES = (100.0, 40.0, -30.0)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    for i, (env, base) in enumerate(zip(ENVS, BASES, strict=True)):
        write_run(root / "runs" / env, f"brax/{env}", columns=lively(i, base), rounds=300)
    lost = {"state": "failed", "reason": "rewards were not finite"}
    write_run(root / "runs" / "pusher", "brax/pusher", columns=lively(3), rounds=300, **lost)
    assert cli.main(["report", str(root / "runs"), "--out", str(root / "report.html"), "--page-only"]) == 0
    return root / "report.html"


@pytest.fixture(params=[(1280, 900, False), (1280, 900, True), (390, 844, False)], ids=["light", "dark", "phone"])
def browser(request):
    opened = Browser(*request.param)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def shared_window():
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture
def window(shared_window):
    """The one window of these tests, on an empty page and with nothing said or asked for yet."""
    shared_window.open("about:blank")
    shared_window.hover(0, 0)
    shared_window.console(), shared_window.requests()
    return shared_window


def test_it_opens_quietly_fits_and_looks_right(browser, page, request):
    browser.open(page.as_uri())
    browser.wait("return document.querySelectorAll('.chart svg, .chart .empty').length > 0 || scrollBy(0, 600)")
    browser.run("document.getElementById('curves').scrollIntoView()")
    browser.wait("return document.querySelectorAll('#curves svg polyline').length >= 3 * 12")
    browser.run("document.getElementById('gate').scrollIntoView()")
    browser.wait("return document.querySelectorAll('#gate svg').length >= 3")
    assert browser.console() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth"), (
        "the page is wider than the window"
    )
    dark = "dark" in request.node.name
    light_level = browser.run("return Number(getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0])")
    assert (light_level < 60) == dark
    assert browser.run("return document.querySelectorAll('.summary p').length") == 3
    assert "rewards were not finite" in browser.run("return document.getElementById('environments').textContent")
    lost = browser.run(
        "return [...document.querySelectorAll('#environments td.lost')].map(e => [e.textContent, e.title])"
    )
    assert lost == [["0 of 3", "all 3 seeds and PPO's 3 seeds failed: rewards were not finite"]] * 2
    # Numbers stand beside the bars, on the page.
    inside = "return [...document.querySelectorAll('.value')].every(e => e.getBoundingClientRect().right <= innerWidth)"
    assert browser.run(inside)
    assert browser.run("return document.querySelectorAll('#gate path.dots').length") > 0
    gaps = (
        "const all = [...document.querySelectorAll('.axis span')].map(e => e.getBoundingClientRect());"
        "const r = all.filter(b => b.width);"
        "return r.slice(1).every((b, i) => b.left > r[i].right) && r.length > 1"
    )
    assert browser.run(gaps), "labels of the bars' scale run into each other"


def column(browser, index):
    rows = "[...document.querySelectorAll('#environments table')[1].tBodies[0].rows]"
    return browser.run(f"return {rows}.map(row => row.cells[arguments[0]].textContent)", index)


def test_tables_sort_on_a_click_and_by_keyboard(window, page):
    window.open(page.as_uri())
    assert column(window, 0) == ["brax/ant", "brax/hopper", "brax/pusher", "brax/reacher"]
    window.run("document.querySelectorAll('#environments table')[1].id = 'second'")
    second = "#second th button"
    window.click(second, 2)  # score: first from high to low
    scores = [text.split()[0] for text in column(window, 2)]
    assert scores[-1] == "–"
    numbers = [float(s) for s in scores[:-1]]
    assert numbers == sorted(numbers, reverse=True)
    assert column(window, 0)[-1] == "brax/pusher"
    assert window.run("return document.querySelectorAll('#second th[aria-sort]').length") == 1
    window.run("document.querySelectorAll('#second th button')[2].focus()")
    window.press("Enter")
    assert [text.split()[0] for text in column(window, 2)] == ["–", *(f"{n:.1f}" for n in sorted(numbers))]
    assert window.run("return document.querySelectorAll('#second th')[2].getAttribute('aria-sort')") == "ascending"
    window.click(second, 0)  # text: from a to z
    assert column(window, 0) == ["brax/ant", "brax/hopper", "brax/pusher", "brax/reacher"]


def lines(window):
    return window.run("return document.querySelectorAll('#curves .chart')[0].querySelectorAll('polyline').length")


def test_variants_and_single_seeds_switch(window, page):
    window.open(page.as_uri())
    window.run("document.getElementById('curves').scrollIntoView()")
    window.wait("return document.querySelectorAll('#curves .chart polyline').length")
    assert lines(window) == 3 * (3 + 1)  # variants x (seeds and their mean)
    window.click("button[data-variant='2']")
    assert lines(window) == 2 * (3 + 1)
    assert window.run("return document.querySelector('button[data-variant=\"2\"]').ariaPressed") == "false"
    hidden = "return [...document.querySelectorAll('[data-of=\"2\"]')].every(e => e.hidden)"
    assert window.run(hidden)
    window.click("#members")
    assert lines(window) == 2
    for variant in (0, 1):
        window.click(f"button[data-variant='{variant}']")
    assert "all variants are switched off" in window.run("return document.querySelector('#curves .chart').textContent")
    for variant in (0, 1, 2):
        window.click(f"button[data-variant='{variant}']")
    assert lines(window) == 3
    assert not window.run(hidden)
    assert window.console() == []


def test_axes_are_in_steps_and_curves_named_at_their_ends(window, page):
    window.open(page.as_uri())
    window.run("drawAll()")
    chart = "document.querySelectorAll('#curves .chart')[0]"
    texts = lambda kind: window.run(f"return [...{chart}.querySelectorAll('{kind}')].map(t => t.textContent)")  # noqa: E731
    assert texts(".x-tick") == ["0", "2M", "4M", "6M"]  # 300 rounds of 20,480 steps
    assert texts(".y-label") == ["return"]
    assert "environment steps" in texts("text")
    assert texts(".name") == ["ppo", "sv-static", "sv-dynamic"]
    for scene in ("#curves", "#gate"):
        boxes = window.run(
            f"const c = document.querySelector('{scene} .chart'), w = c.getBoundingClientRect().right;"
            "const line = Math.max(...[...c.querySelectorAll('polyline')].map(p => p.getBoundingClientRect().right));"
            "return [...c.querySelectorAll('.name')].map(t => t.getBoundingClientRect())"
            ".map(b => [b.top, b.bottom, b.left >= line, b.right <= w])"
        )
        boxes.sort()
        assert boxes
        assert all(beside and inside for _, _, beside, inside in boxes)
        assert all(upper[1] - lower[0] <= 3 for upper, lower in itertools.pairwise(boxes)), "names overlap"
    assert window.run("return document.querySelectorAll('#gate .chart')[0].textContent").count("stable below") == 1
    # The last round stands above its steps, at the right end.
    ends = "const c = charts.get(arguments[0]); return [c.x(300 * 20480), c.x(0), c.holder.clientWidth - c.right]"
    right, left, edge = window.run(ends.replace("arguments[0]", chart))
    assert (right, left) == (edge, 46)
    window.run(
        "const all = [...data.variants]; data.variants.fill('sv-dynamic[delta_v=0.1]'); show(); data.variants = all"
    )
    assert texts(".name") == [], "long names would leave no room for curves"
    assert window.console() == []


def test_hovering_and_arrow_keys_say_member_round_and_value(window, page):
    window.open(page.as_uri())
    window.run("document.getElementById('curves').scrollIntoView()")
    window.wait("return document.querySelectorAll('#curves .chart polyline').length")
    x, y = window.run(
        "const c = charts.get(document.querySelector('#curves .chart')), b = c.holder.getBoundingClientRect();"
        "const s = c.visible[0]; return [b.left + c.x((s.x[60] + 1) * 20480), b.top + c.y(s.y[60])]"
    )
    window.hover(x, y)
    tip = window.run("return document.querySelector('#curves .tip:not([hidden])')?.textContent")
    assert tip is not None
    for word in ("seed", "round", "steps", "return"):
        assert word in tip
    window.run("document.querySelectorAll('#curves .chart')[1].focus()")
    said = "return document.querySelectorAll('#curves .chart')[1].querySelector('.tip').textContent"
    window.press("Right")
    assert "sv-dynamic, mean of 3 seeds: round 299 (6,144,000 steps), return" in window.run(said)
    window.press("Left")
    assert "round 299" not in window.run(said)
    window.press("Down")
    assert "ppo, member 0, seed 0: round" in window.run(said)


def test_thirty_six_members_on_twelve_environments_load_within_two_seconds(window, tmp_path):
    from nextpolicy.experiments.catalogue import SUITES

    for i, env in enumerate(SUITES["brax"].environments):
        write_run(tmp_path / "runs" / env[5:], env, seeds=12, columns=lively(i), rounds=2441, parts=1)
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "r.html"), "--page-only"]) == 0
    window.open((tmp_path / "r.html").as_uri())
    loaded = window.run("return performance.getEntriesByType('navigation')[0].loadEventEnd")
    print(f"{(tmp_path / 'r.html').stat().st_size / 1e6:.1f} MB loaded in {loaded:.0f} ms")
    assert loaded < 2000
    last = window.run("return Math.max(...data.environments.flatMap(e => e.panels.return.map(s => s.x.at(-1))))")
    assert last == 2440, "curves are thinned, not cut"


def test_watching_renews_the_page_and_keeps_its_switches(window, tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", "brax/ant", columns=lively(0), state="running")
    monkeypatch.setattr(watch, "REST", 0)
    serving = watch.server([str(run)], "now", 0, allow_mixed=False)
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    try:
        window.open(f"http://127.0.0.1:{serving.server_port}/")
        assert "0 finished" in window.run("return document.querySelector('.summary').textContent")
        assert window.run("return document.querySelector('.live').textContent") == "live"
        window.click("button[data-variant='2']")
        window.click("#members")
        window.click("#environments th button", 1)
        window.run("document.querySelector('details').open = true")
        (run / "status.json").write_text('{"state": "finished"}')
        window.wait("return document.querySelector('.summary')?.textContent.includes('1 finished')", 20)
        pressed = "return [...document.querySelectorAll('.controls button')].map(b => b.ariaPressed)"
        assert window.run(pressed) == ["true", "true", "false", "false"]
        assert window.run("return document.querySelector('tr[data-of=\"2\"]').hidden")
        assert window.run("return document.querySelector('#environments th[aria-sort]').cellIndex") == 1
        assert window.run("return document.querySelector('details').open")
        assert window.console() == []
    finally:
        window.open("about:blank")
        serving.shutdown()
        thread.join()
        serving.server_close()


def test_an_open_page_says_when_a_run_breaks_and_when_it_is_whole_again(window, tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", "brax/ant", columns=lively(0))
    monkeypatch.setattr(watch, "REST", 0)
    serving = watch.server([str(run)], "now", 0, allow_mixed=False)
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    try:
        window.open(f"http://127.0.0.1:{serving.server_port}/")
        assert window.run("return document.querySelector('.problem')") is None
        part = sorted((run / "metrics").iterdir())[1]
        whole = part.read_bytes()
        part.write_bytes(whole[:100])
        window.wait("return document.querySelector('.problem')", 20)
        said = window.run("return document.querySelector('.problem').textContent")
        assert said.startswith("This page is out of date. ")
        assert part.name in said
        top = "const box = document.querySelector('.problem').getBoundingClientRect(); return [box.top, box.height]"
        assert 0 <= window.run(top)[0] < 100 < 100 + window.run(top)[1]
        assert window.run("return document.querySelector('.live').textContent") == "out of date"
        assert window.run("return document.querySelectorAll('#environments table').length") == 2
        window.run("window.still = true")
        time.sleep(4)  # it asks every 3 seconds, and must not load itself again while nothing changes
        assert window.run("return window.still")
        part.write_bytes(whole)
        window.wait("return !document.querySelector('.problem')", 20)
        assert window.run("return document.querySelector('.live').textContent") == "live"
    finally:
        window.open("about:blank")
        serving.shutdown()
        thread.join()
        serving.server_close()


DRAWN = "return [...document.querySelectorAll('.chart')].map(c => c.querySelectorAll('svg polyline, svg path').length)"


def test_charts_that_were_not_scrolled_to_are_printed(window, page):
    window.open(page.as_uri())
    assert 0 in window.run(DRAWN), "the page must be longer than the window for this test to say anything"
    pdf = base64.b64decode(window.devtools("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF")
    assert all(window.run(DRAWN)), "a chart is blank on paper"
    assert window.console() == []


def test_no_column_is_off_the_paper(window, page):
    window.open(page.as_uri())
    try:
        window.devtools("Emulation.setDeviceMetricsOverride", width=950, height=700, deviceScaleFactor=1, mobile=False)
        window.devtools("Emulation.setEmulatedMedia", media="print")
        inside = (
            "return [...document.querySelectorAll('td, th')].every(e => e.getBoundingClientRect().right <= innerWidth)"
        )
        assert window.run(inside), "a column is off the paper"
        assert window.run("return getComputedStyle(document.querySelector('.controls')).display") == "none"
        assert window.run("return getComputedStyle(document.querySelector('.track i')).printColorAdjust") == "exact"
    finally:
        window.devtools("Emulation.setEmulatedMedia", media="")
        window.devtools("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
