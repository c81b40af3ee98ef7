"""The study of criteria, small: what it measures, that it goes on where it stopped, and that it is redrawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nextpolicy.cli import main as cli
from nextpolicy.run import processes
from nextpolicy.studies.criteria import report, study, tables
from nextpolicy.studies.four_rooms import group

SMALL = {"torso": "mlp", "hidden": (16,), "learning_rate": 3e-3}
ROUNDS = 12


@pytest.fixture(autouse=True)
def _devices_are_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "use_all_cores", lambda: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame, list[str]]:
    said = list[str]()
    path = study.create(tmp_path_factory.mktemp("criteria"), study.Plan(("fail",), 2, ROUNDS, SMALL))
    rows = study.run(path, said.append)
    report.write(path, rows)
    return path, rows, said


def one(rows: pd.DataFrame, variant: str) -> pd.DataFrame:
    return rows[rows["variant"] == variant]


def test_every_variant_has_its_updates(made: tuple[Path, pd.DataFrame, list[str]]) -> None:
    _, rows, said = made
    assert said == [f"criteria: noise fail, {len(study.variants(ROUNDS))} variants x 2 seeds x {ROUNDS} rounds"]
    assert list(dict.fromkeys(rows["variant"])) == list(study.variants(ROUNDS))
    assert (one(rows, "ppo")["updates"] == ROUNDS).all()
    assert (one(rows, "sv-static")["updates"] == ROUNDS // 5).all()


def test_the_oracle_never_harms_and_ppo_does(made: tuple[Path, pd.DataFrame, list[str]]) -> None:
    _, rows, _ = made
    oracle = one(rows, "oracle")
    assert (oracle["updates"] > 0).all()
    # It solves in float32: an update may look harmless that loses less than rounding.
    assert (oracle["loss"] < 1e-5).all()
    assert (one(rows, "ppo")["loss"] > 1e-3).any()


def test_only_reference_variants_have_correlations(made: tuple[Path, pd.DataFrame, list[str]]) -> None:
    _, rows, _ = made
    column = "signal_network_change~epsilon_train"
    assert one(rows, "ppo")[column].abs().between(0, 1).all()
    assert one(rows, "oracle")[column].isna().all()


def test_a_finished_kind_of_noise_is_not_trained_again(made: tuple[Path, pd.DataFrame, list[str]]) -> None:
    path, rows, _ = made
    said: list[str] = []
    again = study.run(path, said.append)
    assert said == []
    assert len(again) == len(rows)


def test_the_report_is_redrawn_from_its_rows(made: tuple[Path, pd.DataFrame, list[str]], capsys) -> None:
    path, _, _ = made
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name not in ("members.csv", "study.json"))
    assert {"signals.csv", "criteria.csv", "report.html", "signals-fail.svg"} <= {p.name for p in files}
    before = {p: p.read_bytes() for p in files}
    for file in files:
        file.unlink()
    cli.main(["study", "criteria", "--resume", str(path)])
    assert {p: p.read_bytes() for p in files} == before
    assert "share of harmful updates: ppo" in capsys.readouterr().out


def test_tables_of_known_rows() -> None:
    seeds = np.arange(8)
    common = {"noise": "fail", "seed": seeds, "updates": 10, "improvement": 0.1, "loss": 0.0, "final_value": 0.8}
    values = {"ppo": 0.5, "oracle": 0.7, "paper": 0.6}
    rows = pd.concat(
        [
            pd.DataFrame(
                common
                | {"variant": name, "mean_value": value + seeds / 100, "harmful": 0.2, "failed": seeds < 2}
                | {"steps_to_goal": np.where(seeds < 3, np.inf, 1000.0)}
            )
            for name, value in values.items()
        ]
    )
    found = tables.criteria(rows).set_index("variant")
    row = found.loc["paper"]
    np.testing.assert_allclose(row[["value_over_ppo", "value_over_ppo_low", "value_over_ppo_high"]].astype(float), 0.1)
    np.testing.assert_allclose(row["value_over_oracle"], -0.1)
    assert row["failures"] == 2
    assert row["steps_to_goal"] == 1000.0
    assert row["steps_to_goal_high"] == np.inf  # three of eight never arrive


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--noise", "sideways"], "noise: expected one of 'fail', 'third', 'success', 'none', got 'sideways'"),
        (["--seeds", "0"], "seeds: expected"),
        (["--rounds", "0"], "rounds: expected"),
        (["--resume", "nowhere"], "resume: expected the folder of a study of criteria, got nowhere"),
        (["--resume", "nowhere", "--seeds", "2"], "--resume: expected no other settings; the study keeps its own"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["study", "criteria", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"nextpolicy: {words}")
    assert not any(tmp_path.iterdir())


def test_a_group_must_not_begin_with_ppo_alone() -> None:
    configs = study.configurations("fail", study.Plan(("fail",), 1, 4, SMALL))
    with pytest.raises(ValueError, match="configs: expected a first configuration with"):
        group.train({"ppo": configs["ppo"], "paper": configs["paper"]})


def test_the_outcome_of_a_member_by_hand() -> None:
    one = {
        "value_behaviour": np.array([0.1, 0.2, 0.795, 0.9, 0.3]),
        "accepted": np.array([1.0, 0.0, 1.0, 1.0, 1.0]),
        "improvement": np.array([0.1, -9.0, 0.3, 0.0, -0.2]),
    }
    found = study.outcome(0.8, one, 100)
    assert found["updates"] == 4
    assert found["improvement"] == pytest.approx(0.05)
    assert found["harmful"] == 0.25  # an update that changes nothing does not harm
    assert found["loss"] == pytest.approx(0.2)
    assert found["steps_to_goal"] == 300.0  # the third round is the first within .01
    assert found["mean_value"] == pytest.approx(0.459)
    assert (found["final_value"], found["failed"]) == (0.3, True)
    assert study.outcome(0.8, one | {"value_behaviour": np.full(5, 0.41)}, 100)["failed"] is False
    assert study.outcome(0.9, one | {"value_behaviour": np.full(5, 0.2)}, 100)["steps_to_goal"] == np.inf
    idle = study.outcome(0.8, one | {"accepted": np.zeros(5)}, 100)
    assert (idle["updates"], idle["loss"]) == (0, 0.0)
    assert np.isnan(idle["harmful"])


def test_correlations_are_of_ranks_with_and_without_trend() -> None:
    time = np.arange(20.0)
    wave = np.where(time % 2, 1.0, -1.0)
    one = dict.fromkeys(study.SIGNALS, time + 3 * wave) | dict.fromkeys(study.QUANTITIES, time - 3 * wave)
    found = study.tracking(one)
    assert found["kl_behaviour~improvement"] > 0.3
    assert found["kl_behaviour~improvement~detrended"] < -0.8


def test_headlines_name_the_signal_that_tracks_best() -> None:
    rows = []
    for seed in range(8):
        for variant in ("paper", "sv-static", "ppo", "oracle", "policy-step 0.1"):
            row = {"noise": "fail", "variant": variant, "seed": seed, "updates": 5, "failed": False}
            row |= dict.fromkeys(("improvement", "loss", "steps_to_goal", "final_value"), 1.0)
            row |= {"harmful": 0.25, "mean_value": {"policy-step 0.1": 0.9, "oracle": 1.0}.get(variant, 0.5)}
            for signal in study.SIGNALS:
                for quantity in study.QUANTITIES:
                    strength = {"kl_drift": -0.8, "signal_stable_values": 0.3}.get(signal, 0.1)
                    row |= {f"{signal}~{quantity}": 0.0, f"{signal}~{quantity}~detrended": strength}
            rows.append(row)
    lines = report.headlines(pd.DataFrame(rows))
    assert "best tracked by kl drift (rank correlation -0.80 without trends; the paper's signal 0.30" in lines[0]
    assert lines[-2] == "share of harmful updates: ppo 25 %, sv-static 25 %, paper 25 %, oracle 25 %"
    assert lines[-1].startswith("mean value over training, less PPO's: policy-step 0.1 +0.4000, paper +0.0000")


RESULTS = Path(__file__).parents[2] / "results" / "criteria"


@pytest.mark.parametrize("name", ["signals", "criteria"])
def test_the_committed_tables_are_those_of_the_committed_members(name: str) -> None:
    made = getattr(tables, name)(pd.read_csv(RESULTS / "members.csv"))
    assert made.to_csv(index=False, float_format="%.5g") == (RESULTS / f"{name}.csv").read_text()
