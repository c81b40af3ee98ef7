"""The player of the Four Rooms page: its data, its sentences, and what Chromium shows of them."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest

from nextpolicy.studies.four_rooms import exact, player, report
from nextpolicy.studies.four_rooms.figures import shown_seed
from nextpolicy.tabular import four_rooms_mdp, solve
from report.browser import MISSING, Browser

from .helpers import made_up_study

browsing = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
ROUNDS = 12
HELD, FOLLOWS = "is held", "the target follows"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return made_up_study(tmp_path_factory.mktemp("study"), seeds=2, rounds=ROUNDS)


@pytest.fixture(scope="module")
def page(study):
    path = study.path / "report.html"
    report.make_page(study).write(path)
    return path


@pytest.fixture(scope="module")
def window(page):
    opened = Browser()
    opened.open(page.as_uri())
    yield opened
    opened.close()


def of(study, algo):
    return study.trajectory.member(study.index(algo, shown_seed(study)))


def truth(study, algo):
    """What each frame shows, [K + 1, 104], from the study itself."""
    run = of(study, algo)
    visits = lambda policy: solve.renormalised_visitation(study.mdp, policy).sum(-1)  # noqa: E731
    return {
        "true": solve.state_value(study.mdp, run.target),
        "predicted": run.value,
        "target": visits(run.target),
        "behaviour": visits(run.behaviour),
    }


def test_a_full_study_stays_small(study, page):
    """All but the frames does not grow with the rounds: 195 rounds stay below 1.5 MB."""
    text = page.read_text()
    frames = len(json.dumps(player.data(study)["algos"]))
    assert len(text) - frames + frames * 196 / (ROUNDS + 1) < 1.5e6


def test_sentences_say_what_happened_and_why(study):
    for algo in study.algos:
        run = of(study, algo)
        said = next(a for a in player.data(study)["algos"] if a["name"] == player.NAMES[algo])["said"]
        assert said[0].startswith("Before training")
        assert len(said) == ROUNDS + 1
        step = study.exact["exact_kl_target"][study.index(algo, shown_seed(study))]
        for k, accepted in enumerate(run.accepted):
            assert said[k + 1].startswith(f"Round {k}: ")
            assert (FOLLOWS in said[k + 1]) == accepted
            assert (HELD in said[k + 1]) != accepted
            if accepted:
                assert f"KL {step[k]:.2g}{',' if algo == 'ppo' else ':'} " in said[k + 1]


def test_drift_is_the_divergence_of_the_next_round(study):
    """KL(pi_{k+1} || beta_{k+1}) after round k is the drift that the study records for round k + 1."""
    run, index = of(study, "sv-dynamic"), study.index("sv-dynamic", shown_seed(study))
    said = player.sentences(study, "sv-dynamic", run, truth(study, "sv-dynamic")["behaviour"])
    held = [k for k in range(ROUNDS - 1) if not run.accepted[k]]
    assert held
    for k in held:
        assert f"Behaviour: KL {study.exact['exact_kl_drift'][index, k + 1]:.2g} away" in said[k + 1]


def test_reasons_of_the_gate(tmp_path):
    study = made_up_study(tmp_path, seeds=1, rounds=40)
    index = study.index("sv-dynamic", 0)
    run = of(study, "sv-dynamic")
    run.accepted[:] = False
    run.accepted[[32, 36]] = True
    study.metrics["diff_scale"][index] = 1.0
    study.metrics["diff"][index] = np.where(np.arange(40) < 33, 0.5, 0.05)
    study.metrics["rounds_held"][index] = [*range(1, 34), 1, 2, 3, 4, 1, 2, 3]
    study.metrics["stable_rounds"][index] = [*[0] * 33, 1, 2, 3, 4, 1, 2, 3]
    said = player.sentences(study, "sv-dynamic", run, truth(study, "sv-dynamic")["behaviour"])
    assert "held, now for 1 round; values are still 0.5 of their size from their targets (limit 0.1)" in said[1]
    assert "it was held for 33 rounds, the most allowed" in said[33]
    assert "held, now for 2 rounds; values are stable for 2 of 4 rounds" in said[35]
    assert "values were stable for 4 rounds" in said[37]
    # The bounds of a round count, which decay lowers, not those of the settings.
    study.metrics["k_min"][index], study.metrics["k_max"][index] = 3, 20
    run.accepted[[19, 35]] = True
    said = player.sentences(study, "sv-dynamic", run, truth(study, "sv-dynamic")["behaviour"])
    assert "it was held for 20 rounds, the most allowed" in said[20]
    assert "values are stable for 2 of 3 rounds" in said[35]
    assert "values were stable for 3 rounds" in said[36]


@browsing
@pytest.mark.parametrize("algo", ["ppo", "sv-dynamic", "sv-static"])
def test_numbers_are_those_of_the_study(window, study, algo):
    place = study.algos.index(algo)
    kinds = list(truth(study, algo))
    shown = window.run(
        "const [place, kinds, rounds] = arguments; return kinds.map(kind => [...Array(rounds + 1).keys()].map("
        "i => data.cells.map((_, state) => runs[place].number(kind, i, state))))",
        place, kinds, ROUNDS,
    )  # fmt: skip
    for kind, got in zip(kinds, shown):
        np.testing.assert_allclose(got, truth(study, algo)[kind], atol=3e-5, err_msg=kind)
    run = of(study, algo)
    for name, policies in (("false", run.behaviour), ("true", run.target)):
        script = f"return data.cells.map((_, state) => runs[{place}].policy(7, state, {name}))"
        np.testing.assert_allclose(window.run(script), policies[7], atol=2.1e-3)


def frame(window):
    """What the reader sees: arrows, sentence, numbers of both sides, round."""
    return window.run(
        "return [...document.querySelectorAll('.side')].map(s => ({"
        "arrows: s.querySelector('.arrows').getAttribute('d'), said: s.querySelector('.said').textContent,"
        "cells: [...s.querySelectorAll('.true .cell')].map(c => c.style.fill),"
        "shade: [...s.querySelectorAll('.policy .cell')].map(c => Number(c.style.fillOpacity)),"
        "numbers: Object.fromEntries([...s.querySelectorAll('tr')].map(r => [...r.cells].map(c => c.textContent)))}))"
    )


def go(window, i):
    window.run("go(arguments[0])", i)
    return frame(window)


@browsing
def test_the_slider_moves_arrows_maps_and_sentences(window, study):
    run = of(study, "sv-dynamic")
    update = int(np.flatnonzero(run.accepted)[0]) + 1
    assert update > 1
    before = go(window, update - 1)
    window.run("document.getElementById('round').focus()")
    window.press("Right")
    after = frame(window)
    assert (
        window.run("return document.getElementById('round-name').textContent") == f"round {update - 1} of {ROUNDS - 1}"
    )
    for side in range(2):
        assert before[side]["arrows"] != after[side]["arrows"]
        assert after[side]["said"].startswith(f"Round {update - 1}: the target follows")
    assert HELD in before[1]["said"]
    assert before[1]["cells"] != after[1]["cells"]  # the true values are of another target
    # The shade is the distance of behaviour and target: gone after the update, and always for PPO.
    apart = np.abs(run.behaviour[update - 1] - run.target[update - 1]).sum(-1) / 2
    goal = four_rooms_mdp.state_index(*four_rooms_mdp.GOAL)
    np.testing.assert_allclose(before[1]["shade"], np.delete(apart, goal), atol=0.01)
    assert max(before[1]["shade"]) > 0.1
    assert set(after[1]["shade"]) == set(before[0]["shade"]) == {0}
    text = window.run("return document.getElementById('round').getAttribute('aria-valuetext')")
    assert after[1]["said"] in text


@browsing
def test_a_chosen_cell_tells_its_numbers(window, study):
    start = four_rooms_mdp.state_index(*four_rooms_mdp.START)
    shown = go(window, 5)[1]["numbers"]
    assert shown["cell"] == "row 4, column 1 (S)"
    values = truth(study, "sv-dynamic")
    assert float(shown["true value"]) == pytest.approx(values["true"][5, start], abs=6e-4)
    assert float(shown["predicted value"]) == pytest.approx(values["predicted"][5, start], abs=6e-4)
    assert float(shown["time there, target"]) == pytest.approx(values["target"][5, start], rel=0.06)
    chances = [float(p) for p in re.findall(r"\d\.\d\d", shown["behaviour"])]
    np.testing.assert_allclose(chances, of(study, "sv-dynamic").behaviour[5, start], atol=8e-3)
    window.run("document.getElementById('round').focus()")
    window.press("Shift+Right", "Shift+Up")
    assert frame(window)[0]["numbers"]["cell"] == "row 3, column 2"
    assert window.run("return slider.value") == "5", "shift and arrows move the cell, not the round"
    window.press("Shift+Left", "Shift+Left")  # the second into the wall
    assert frame(window)[0]["numbers"]["cell"] == "row 3, column 1"
    window.run("document.querySelectorAll('.side')[0].querySelectorAll('.true .cell')[0].dispatchEvent("
               "new MouseEvent('click', {bubbles: true}))")  # fmt: skip
    assert frame(window)[1]["numbers"]["cell"] == "row 1, column 1"


def ticks(window, line):
    found = "[...document.querySelectorAll('.ticks')[arguments[0]].children]"
    return window.run(f"return {found}.map(t => [+t.dataset.round, t.style.left])", line)


@browsing
def test_ticks_are_the_recorded_updates(window, study):
    for line, algo in ((0, "ppo"), (1, "sv-dynamic")):
        updates = np.flatnonzero(of(study, algo).accepted)
        assert [k for k, _ in ticks(window, line)] == updates.tolist()
        places = [float(left.rstrip("%")) for _, left in ticks(window, line)]
        np.testing.assert_allclose(places, 100 * (updates + 1) / ROUNDS, rtol=1e-3)
    go(window, 0)
    window.click("#next")
    first, second = (np.flatnonzero(of(study, "sv-dynamic").accepted) + 1)[:2]
    assert window.run("return +slider.value") == first
    window.click("#next")
    window.click("#back")
    assert window.run("return +slider.value") == first < second
    choose = "const s = document.getElementById('rival'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))"
    window.run(choose, "1")
    assert [k for k, _ in ticks(window, 1)] == np.flatnonzero(of(study, "sv-static").accepted).tolist()
    assert window.run("return document.querySelectorAll('.side h3')[1].textContent") == "SV-PPO, static"
    window.run(choose, "2")


@browsing
def test_space_plays_and_pauses(window):
    go(window, 2)
    window.run("document.getElementById('round').focus()")
    window.press("Space")
    window.wait("return +slider.value >= 4")
    window.press("Space")
    stopped = window.run("return [slider.value, document.getElementById('play').ariaPressed, timer]")
    assert stopped[1:] == ["false", None]
    go(window, ROUNDS)
    window.click("#play")  # from the end, it starts again
    window.wait("return +slider.value >= 1 && +slider.value < 5")
    window.run("play(false)")


def drag_by_touch(browser):
    browser.devtools("Emulation.setTouchEmulationEnabled", enabled=True)
    slider = "document.getElementById('round')"
    browser.run(f"{slider}.scrollIntoView({{block: 'center'}}); go(0)")
    left, y, width = browser.run(
        f"const b = {slider}.getBoundingClientRect(); return [b.left, b.top + b.height / 2, b.width]"
    )
    touch = lambda kind, *at: browser.devtools("Input.dispatchTouchEvent", type=kind, touchPoints=[*at])  # noqa: E731
    touch("touchStart", {"x": left + 9, "y": y})
    for share in (0.25, 0.5):
        touch("touchMove", {"x": left + share * width, "y": y})
    touch("touchEnd")
    assert browser.run("return +slider.value") == ROUNDS / 2
    assert frame(browser)[0]["said"].startswith(f"Round {ROUNDS // 2 - 1}: ")


@browsing
@pytest.mark.parametrize("size", [(390, 844, False), (1280, 900, True)], ids=["phone", "dark"])
def test_it_fits_is_quiet_and_asks_for_nothing(page, size):
    browser = Browser(*size)
    try:
        browser.open(page.as_uri())
        browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        assert browser.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth"), (
            "the page scrolls sideways"
        )
        assert browser.console() == []
        assert [url for url in browser.requests() if not url.startswith("data:")] == [page.as_uri()]
        maps = browser.run(
            "return [...document.querySelectorAll('.map svg')].map(m => { const b = m.getBoundingClientRect();"
            "return [b.width, b.right <= document.documentElement.clientWidth]; })"
        )
        assert len(maps) == 2 * len(player.MAPS)
        assert all(width > 90 and inside for width, inside in maps)
        level = "return Number(getComputedStyle(arguments[0]).backgroundColor.match(/[0-9]+/)[0])"
        assert (browser.run(level.replace("arguments[0]", "document.body")) < 60) == size[2]
        unnamed = (
            "return [...document.querySelectorAll('svg[role=img], button, input, select')].filter(e => !(e.ariaLabel"
        )
        unnamed += "|| e.textContent.trim())).length"
        assert browser.run(unnamed) == 0
    finally:
        browser.close()


@browsing
def test_on_paper_it_is_the_round_shown(window):
    go(window, 3)
    try:
        window.devtools("Emulation.setEmulatedMedia", media="print")
        hidden = "return [...document.querySelectorAll('.player button, .player label')].every(e => !e.offsetWidth)"
        assert window.run(hidden)
        assert window.run("return document.querySelector('.said').offsetWidth > 100")
        assert base64.b64decode(window.devtools("Page.printToPDF")["data"]).startswith(b"%PDF")
    finally:
        window.devtools("Emulation.setEmulatedMedia", media="")
    assert window.console() == []


def test_divergence_of_equal_policies_is_zero():
    policy = np.array([[0.5, 0.5, 0.0, 0.0]])
    assert exact.kl(policy, policy) == 0.0
