"""The bias of advantage estimators on Four Rooms: known ends of the curves, and the study from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nextpolicy.cli import main as cli
from nextpolicy.run import processes
from nextpolicy.studies.four_rooms.exact import kl
from nextpolicy.studies.off_policy import bias
from nextpolicy.tabular import four_rooms_mdp, solve
from nextpolicy.tabular.estimators import expected_advantage

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(autouse=True)
def _devices_are_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "use_all_cores", lambda: None)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bias, "SHARES", (0.25,))
    monkeypatch.setattr(bias, "DRIFTS", (1e-6, 0.01, 1.0))


def test_target_and_drift_are_those_asked_for() -> None:
    mdp = four_rooms_mdp.four_rooms()
    pi = bias.target_policy(mdp, 0.5)
    best = float(solve.optimal(mdp).V @ mdp.start)
    assert 0.5 * best <= float(solve.start_value(mdp, pi)) < 0.6 * best
    beta = bias.drifted(mdp, pi, 0.02)
    visited = np.where(mdp.terminal, 0.0, solve.visitation(mdp, beta).sum(-1))
    assert (visited * kl(pi, beta)).sum() / visited.sum() == pytest.approx(0.02, rel=1e-6)
    assert solve.start_value(mdp, beta) > solve.start_value(mdp, pi)
    certain = np.eye(4)[solve.optimal(mdp).Q.argmax(-1)]  # mirror descent does not leave it
    with pytest.raises(ValueError, match=r"drift: expected one that mirror descent reaches, got 0.02"):
        bias.drifted(mdp, certain, 0.02)


def test_the_study_from_the_command_line(small: None, tmp_path, capsys) -> None:
    assert cli.main(["study", "off-policy", "--out", str(tmp_path / "study")]) == 0
    said = capsys.readouterr().out
    assert "paper: off by" in said
    table = pd.read_csv(tmp_path / "study" / "bias.csv")
    error = table.set_index(["kind", "rho_max", "kl"])["error"]
    assert error["paper", np.inf, 1e-6] < 0.1  # nearly on-policy
    assert error["paper", np.inf, 0.01] > error["retrace", np.inf, 0.01] > 0.5
    assert error["vtrace", np.inf, 1.0] < 1e-6
    assert error["vtrace", 1.0, 0.01] > 0.5
    assert error["vtrace", 5.0, 0.01] < 1e-6 < error["vtrace", 5.0, 1.0]  # the bound clips only at a large drift
    assert (table[table["kind"] == "vtrace"].query("rho_max == inf")["sign"] == 0).all()
    assert table.query("kind == 'paper' and kl == 0.01")["sign"].item() > 0.3
    assert (tmp_path / "study" / "figures" / "bias-0.25.svg").is_file()
    assert cli.main(["study", "off-policy", "--out", str(tmp_path / "study")]) == 2
    assert "out: expected a new or empty folder" in capsys.readouterr().err
    assert cli.main(["study", "off-policy", "--noise", "loud"]) == 2
    assert "noise: expected one of" in capsys.readouterr().err


def test_the_committed_table_is_that_of_the_study() -> None:
    stored = pd.read_csv(RESULTS / "off-policy" / "bias.csv")
    chosen = stored[(stored["share"] == 0.5) & np.isclose(stored["kl"], 0.01)].reset_index(drop=True)
    mdp = four_rooms_mdp.four_rooms()
    pi = bias.target_policy(mdp, 0.5)
    beta = bias.drifted(mdp, pi, 0.01)
    for kind, rho_max, *errors in chosen[["kind", "rho_max", "error", "relative", "sign"]].itertuples(index=False):
        again = bias.errors(mdp, pi, beta, kind, rho_max)
        np.testing.assert_allclose(
            [again[name] for name in ("error", "relative", "sign")], errors, rtol=1e-3, atol=1e-8
        )


def test_errors_by_hand() -> None:
    """The weights are those of the data, and `relative` is without the mean over beta."""
    mdp = four_rooms_mdp.four_rooms()
    pi = bias.target_policy(mdp, 0.25)
    beta = bias.drifted(mdp, pi, 0.05)
    truth, found = solve.advantage(mdp, pi), expected_advantage(mdp, pi, beta, kind="paper", lam=bias.LAM)
    total = wrong = off = within = size = spread = 0.0
    visited = solve.visitation(mdp, beta)
    for s in np.flatnonzero(~mdp.terminal):
        shift = sum(beta[s, a] * (found[s, a] - truth[s, a]) for a in range(4))
        middle = sum(beta[s, a] * truth[s, a] for a in range(4))
        for a in range(4):
            weight = visited[s, a]
            total += weight
            wrong += weight * (found[s, a] * truth[s, a] < 0)
            off += weight * abs(found[s, a] - truth[s, a])
            size += weight * abs(truth[s, a])
            within += weight * abs(found[s, a] - truth[s, a] - shift)
            spread += weight * abs(truth[s, a] - middle)
    expected = {"error": off / size, "relative": within / spread, "sign": wrong / total}
    assert bias.errors(mdp, pi, beta, "paper", np.inf) == pytest.approx(expected, rel=1e-6)
