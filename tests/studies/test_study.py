"""The studies from the command line, end to end and small; and the claims on eight seeds, slow."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import nextpolicy
from nextpolicy.cli import main as cli
from nextpolicy.run import processes
from nextpolicy.run.folder import RunError
from nextpolicy.studies.four_rooms import figures as drawn
from nextpolicy.studies.four_rooms import report, summary, verdicts
from nextpolicy.studies.four_rooms import study as four_rooms_study
from nextpolicy.studies.theory import checks, compare
from nextpolicy.studies.theory import study as theory_study
from nextpolicy.tabular import four_rooms_mdp

from .helpers import made_up_study

ROUNDS = 6


@pytest.fixture(autouse=True)
def _devices_are_fixed(monkeypatch):
    """The command line sets up one device per core, which JAX allows only before its first operation."""
    monkeypatch.setattr(processes, "use_all_cores", lambda: None)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """One seed, six rounds in two blocks of three; a small network that learns fast, so that divergences are large."""
    path = tmp_path_factory.mktemp("tiny") / "study"
    small = {"torso": "mlp", "hidden": (16,), "learning_rate": 3e-3}
    config = four_rooms_study.configuration(rounds=ROUNDS, seeds=1, static_k=2, block_rounds=3, **small)
    return four_rooms_study.run(config, path, quiet=True)


def test_a_tiny_study_end_to_end(tiny):
    assert [m.algo for m in tiny.members] == ["ppo", "sv-static", "sv-dynamic"]
    assert tiny.exact["holds"].all()
    assert tiny.exact["assumptions_met"].all()
    np.testing.assert_array_equal(tiny.trajectory.accepted[0], True)
    np.testing.assert_array_equal(np.flatnonzero(tiny.trajectory.accepted[1]), [1, 3, 5])
    # All start from one policy, which PPO's first round leaves; a held target stays where it is.
    np.testing.assert_array_equal(tiny.trajectory.target[2, 0], tiny.trajectory.behaviour[2, 0])
    held = ~tiny.trajectory.accepted[2]
    np.testing.assert_array_equal(tiny.trajectory.target[2, 1:][held], tiny.trajectory.target[2, :-1][held])
    taken = tiny.trajectory.accepted[1]
    np.testing.assert_array_equal(tiny.trajectory.target[1, 1:][taken], tiny.trajectory.behaviour[1, 1:][taken])


def test_exact_divergences_are_near_those_on_the_data(tiny):
    """The metrics average over a thousand sampled steps what the exact ones average over the visitation."""
    for name in ("kl_behaviour", "kl_target"):
        sampled, truth = tiny.metrics[name], tiny.exact[f"exact_{name}"]
        np.testing.assert_allclose(sampled, truth, rtol=0.5, atol=2e-3)


def test_the_study_is_a_normal_run_folder(tiny):
    loaded = nextpolicy.load(tiny.path)
    assert loaded.status["state"] == "finished"
    assert len(loaded.metrics) == 3 * ROUNDS
    frame = pd.read_parquet(tiny.path / "exact.parquet")
    assert len(frame) == 3 * ROUNDS
    assert frame["holds"].all()
    one = frame[(frame["variant"] == "sv-static") & (frame["round"] == 4)].iloc[0]
    assert one["value_behaviour"] == tiny.exact["value_behaviour"][1, 4]


@pytest.fixture(scope="module")
def written(tiny):
    """The text of the page, and what was said meanwhile."""
    heard: list[str] = []
    return report.write_report(tiny, heard.append).read_text(), heard


def test_the_report_says_what_was_found(tiny, written):
    text, heard = written
    for line in report.headlines(tiny):
        assert line.split("[")[0].split(";")[0] in text
    assert len(report.headlines(tiny)) == 5
    assert f"certificates that hold: {3 * ROUNDS} of {3 * ROUNDS}" in text
    figures = {p.name for p in (tiny.path / "figures").iterdir()}
    assert figures == {f"{name}.{kind}" for name in drawn.all_figures(tiny) for kind in ("png", "svg")}
    assert len(heard) == len(figures) / 2 + 1
    members = pd.read_csv(tiny.path / "members.csv")
    assert members["updates"].tolist()[:2] == [ROUNDS, 3]
    assert pd.read_csv(tiny.path / "algorithms.csv").iloc[0, 1:].map(float).notna().all(), "an interval over one seed"
    certificates = pd.read_csv(tiny.path / "certificates.csv")
    assert (certificates["hold"] == certificates["certificates"]).all()


def test_a_stopped_study_goes_on_to_the_same_end(tiny, tmp_path, monkeypatch):
    """Stopped after the checkpoint of the second block and before its tables: the block is done again."""
    path = tmp_path / "stopped"
    keep = four_rooms_study._save

    def stop_at_second_block(target, tables):
        if target.name.startswith("part-00000003"):
            raise KeyboardInterrupt
        keep(target, tables)

    monkeypatch.setattr(four_rooms_study, "_save", stop_at_second_block)
    with pytest.raises(KeyboardInterrupt):
        four_rooms_study.run(tiny.config, path, quiet=True)
    monkeypatch.setattr(four_rooms_study, "_save", keep)
    resumed = four_rooms_study.resume(path, quiet=True)
    for name, column in tiny.exact.items():
        np.testing.assert_array_equal(resumed.exact[name], column, err_msg=name)
    # And one that had come to its end is only read.
    again = four_rooms_study.resume(path, quiet=True)
    np.testing.assert_array_equal(again.exact["bound"], tiny.exact["bound"])


def test_a_folder_in_use_is_refused(tiny):
    with pytest.raises(RunError, match="holds another run"):
        four_rooms_study.run(tiny.config, tiny.path, quiet=True)


def complaint(capsys, *arguments):
    assert cli.main(["study", *map(str, arguments)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["four-rooms", "--rounds", "0"], "rounds: expected a whole number of at least 1 .*, got 0"),
        (["four-rooms", "--rounds", "many"], "--rounds"),
        (["four-rooms", "--noise", "loud"], "noise: expected one of .*, got 'loud'"),
        (["four-rooms", "--seeds", "0"], "seeds: expected .*, got 0"),
        (["four-rooms", "--seedz", "2"], "unknown option '--seedz'; did you mean '--seeds'"),
        (["four-rooms", "--algo", "ppo"], "unknown option '--algo'"),
        (["four-rooms", "--resume", "nowhere"], "expected a run folder, got nowhere"),
        (["four-rooms", "--resume", "nowhere", "--seeds", "2"], "--resume: expected no other settings"),
        (["theory", "--cases", "0"], "cases: expected .*, got 0"),
        (["theory", "--repeats", "0"], "repeats: expected .*, got 0"),
        (["maze"], "unknown study 'maze'"),
    ],
)
def test_bad_input_is_one_line(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert re.search(words, complaint(capsys, *arguments))
    assert not (tmp_path / "runs").exists()


def test_another_run_is_not_a_study(tiny, tmp_path, capsys):
    other = tmp_path / "run"
    other.mkdir()
    (other / "config.json").write_text((tiny.path / "config.json").read_text())
    assert "expected the folder of a Four Rooms study" in complaint(capsys, "four-rooms", "--resume", other)


def test_statements_that_hold_hold_and_the_others_do_not():
    cases = [*checks.random_cases(250, 3), checks.unseen_door()]
    table, worst = checks.check(iter(cases))
    for line in table:
        assert (line["violations"] == 0) == (line["expected"] == "holds"), line["statement"]
    assert set(worst) == {s.name for s in checks.STATEMENTS if not s.holds}
    for example in worst.values():
        assert np.asarray(example["P"]).shape == (example["states"], example["actions"], example["states"])
    sharp = {line["statement"]: line["median bound / truth"] for line in table}
    assert sharp["Lemma tv_dist with constant 1"] <= sharp["Lemma tv_dist (constant 2, as printed)"]
    assert sharp["Theorem 1, upper side"] >= 1.0


def test_a_counterexample_is_one():
    """The numbers stored for the CPI bound, put together again."""
    from nextpolicy.tabular import TabularMDP, solve
    from nextpolicy.tabular import theory as exact_theory

    _, worst = checks.check(checks.random_cases(120, 0))
    one = worst["CPI bound, as printed"]
    mdp = TabularMDP(one["P"], one["R"], one["gamma"], one["start"])
    delta = min(one["delta"], 0.1 / (1.0 - mdp.gamma))
    best, pi = solve.optimal(mdp).pi, np.asarray(one["pi"])
    step = exact_theory.cpi_step(mdp, pi, best, delta)
    assert float(exact_theory.improvement(mdp, pi, step)) == pytest.approx(one["truth"])
    assert float(exact_theory.cpi_bound_as_printed(mdp, pi, best, delta)) == pytest.approx(one["bound"])
    assert one["bound"] > one["truth"]


def test_the_algorithms_compared():
    settings = compare.Settings(rounds=24, repeats=2, k_min=2, k_max=6)
    mdp = four_rooms_mdp.four_rooms()
    histories = compare.compare(mdp, settings)
    lines = {line["algorithm"]: line for line in compare.table(histories)}
    assert lines["API, exact critic"]["updates that lost value"] == 0
    assert lines["API"]["target updates"] == 24
    assert 24 / 6 <= lines["SV-API"]["target updates"] <= 24 / 2
    assert all(line["certificates hold"] for line in lines.values())
    figure = compare.figure(mdp, histories)
    marks = [a for a in figure.axes[1].lines if a.get_gid() == "falls"]
    counted = [sum(len(compare.falls(h)) for h in runs) for runs in histories.values()]
    assert [len(m.get_xdata()) for m in marks] == counted


def test_the_learning_critic_remembers():
    mdp = four_rooms_mdp.four_rooms()
    rng = np.random.default_rng(0)
    critic = compare.LearningCritic(sigma=0.0, samples=10.0)
    mu = np.full((104, 4), 1.0 / 416)
    mu[0] = 0.0
    pi = np.full((104, 4), 0.25)
    from nextpolicy.tabular import solve

    truth = solve.action_value(mdp, pi)
    share = (10 / 416) / (1 + 10 / 416)
    np.testing.assert_allclose(critic(mdp, pi, mu, rng)[1:], share * truth[1:])
    second = critic(mdp, pi, mu, rng)
    np.testing.assert_allclose(second[1:], (1 - (1 - share) ** 2) * truth[1:])
    np.testing.assert_array_equal(second[0], 0.0)
    with pytest.raises(ValueError, match=r"sigma: expected .*, got -1"):
        compare.LearningCritic(-1.0, 10.0)


def test_theory_study_end_to_end(tmp_path, capsys):
    out = tmp_path / "theory"
    small = ["--cases", "40", "--four-rooms-cases", "5", "--rounds", "6", "--repeats", "1", "--quiet"]
    assert cli.main(["study", "theory", "--out", str(out), *small]) == 0
    printed = capsys.readouterr().out
    assert f"report: {out / 'report.html'}" in printed
    assert "Theorem SV-API improvement" in printed
    assert (out / "figures" / "policy-iteration.svg").exists()
    assert json.loads((out / "counterexamples.json").read_text())
    assert len(pd.read_csv(out / "random.csv")) == len(checks.STATEMENTS)
    assert "holds other files" in complaint(capsys, "theory", "--out", out)


def test_a_broken_statement_is_an_error():
    line = {"statement": "Lemma x", "expected": "holds", "violations": 1}
    with pytest.raises(RuntimeError, match="expected no violation of true statements, got Lemma x"):
        theory_study.raise_if_violated({"random": [line], "four_rooms": []})


def test_the_page_goes_from_plain_words_to_details(written):
    page = html.unescape(written[0].partition("</h1>")[2])
    opening = re.split("<figure", page)[0]
    assert opening.count('<p class="lead">') == 3
    assert not re.search(r"\d", opening), "a number before the drawing"
    assert page.index('class="drawing"') < page.index('class="verdict"') < page.index('id="player"')
    # A verdict above every figure but the drawing at the top, and one large figure.
    for before in re.split("<figure", page)[2:-1]:
        assert 'class="verdict"' in before
    assert page.count('class="verdict"') == page.count("<figure") - 1
    assert page.count('class="hero"') == 1
    folded = "".join(re.findall("<details>.*?</details>", page, re.S))
    assert page.count("<table") - folded.count("<table") == 2, "only the player's tables are not folded"
    assert "fail'" in page
    assert "a step goes as intended with probability 0.8" in page
    for word in ("certificate is", "vacuous if"):
        assert word in page


def test_verdicts_follow_the_numbers(tmp_path):
    study = made_up_study(tmp_path, seeds=2, rounds=5)
    study.exact["value_behaviour"][:] = [0.1, 0.1, 0.8, 0.8, 0.83]
    study.exact["value_behaviour"][study.index("ppo", 0)] = 0.1
    study.exact["value_behaviour"][study.index("ppo", 1)] = 0.1
    study.exact["gap_bottom_left"][:] = 0.5
    study.exact["gap_bottom_left"][[study.index("sv-static", s) for s in (0, 1)], -1] = 0.25
    said = verdicts.value(study)
    assert "PPO never, SV-PPO, static 2, SV-PPO, dynamic 2; 4 of 6 runs end within 0.01" in said
    said = verdicts.bottom_left(study)
    assert "SV-PPO, static loses least, 0.2500" in said
    assert said.endswith("(2 seeds: too few to call this a difference).")
    many = made_up_study(tmp_path, seeds=summary.FEWEST, rounds=3)
    many.exact["gap_bottom_left"][:] = 0.3
    assert "[0, 0]: no clear difference" in verdicts.bottom_left(many)
    many.exact["gap_bottom_left"][[many.index("ppo", s) for s in range(summary.FEWEST)]] = 0.4
    assert "0.1 [0.1, 0.1]: a clear difference" in verdicts.bottom_left(made_again(many))
    study.exact["vacuous"][:] = True
    study.exact["theorem1_vacuous"][:] = True
    study.exact["theorem1_vacuous"][0, :2] = False
    said = verdicts.certificates(made_again(study))
    assert "all 30 are vacuous" in said
    assert "promises one in 2." in said
    study.metrics["accepted"][:] = False
    assert "never let the target follow in 5 rounds" in verdicts.gate(made_again(study))


def made_again(study):
    """The study without the rows that it has computed already."""
    return replace(study)


def test_headlines_without_any_update(tmp_path):
    study = made_up_study(tmp_path, seeds=1, rounds=3)
    study.metrics["accepted"][2] = False
    assert "no update was made" in report.headlines(study)[3]


@pytest.mark.slow
def test_the_claims_on_eight_seeds(tmp_path):
    """The numbers of the spec's section 8: schedule, values, divergences, the bottom-left room, certificates."""
    study = four_rooms_study.run(four_rooms_study.configuration(seeds=8), tmp_path / "study", quiet=True)
    of = lambda algo, column: summary.of_algo(study.rows, algo, column)  # noqa: E731
    assert 33 <= of("sv-dynamic", "updates").mean() <= 45
    static = study.column("sv-static", "accepted")
    np.testing.assert_array_equal(static, np.tile(np.arange(195) % 5 == 4, (8, 1)))
    for algo in study.algos:
        assert of(algo, "near_optimal").sum() >= 7, algo
    assert of("sv-dynamic", "kl_target").mean() >= 5 * of("sv-dynamic", "kl_behaviour").mean()
    gaps = summary.median_interval(summary.paired(study.rows, "gap_bottom_left", "ppo", "sv-dynamic"))
    assert gaps.median > 0
    assert np.median(of("sv-dynamic", "gap_bottom_left")) < np.median(of("ppo", "gap_bottom_left"))
    assert study.exact["holds"].all()
