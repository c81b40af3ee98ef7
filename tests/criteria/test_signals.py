"""What the criteria besides the paper's watch, and that they can be swept."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy import criteria
from nextpolicy.criteria.bounds import Bounds
from nextpolicy.types import Evidence

QUIET = {name: jnp.zeros(()) for name in Evidence._fields}
CALM = Evidence(**QUIET | {"scale": jnp.asarray(2.0), "ratio_ess": jnp.asarray(1.0)})
CERTAIN = {"residual": 0.5, "noise": 0.3, "tv_step_high": 0.1, "tv_step": 0.9}


def decision(name: str, evidence: Evidence, **settings: float) -> tuple[float, float, bool]:
    """diff, diff over threshold, and whether one stable round is accepted."""
    criterion = criteria.CRITERIA[name]()
    params = criterion.settings(k_min=1, k_max=100, **settings)
    _, accept, metrics = criterion.update(criterion.init(), evidence, params, jnp.zeros(()))
    return float(metrics["diff"]), float(metrics["diff_over_threshold"]), bool(accept)


@pytest.mark.parametrize(
    ("name", "evidence", "settings", "diff", "relative"),
    [
        ("network-change", {"diff_network": 0.3, "diff_target": 9.0}, {"delta_v": 0.1}, 0.3, 1.5),
        ("network-change", {"diff_network": 0.1}, {"delta_v": 0.1}, 0.1, 0.5),
        ("noise-corrected", {"residual": 0.5, "noise": 0.3}, {"delta_v": 0.1}, 0.4, 2.0),
        ("noise-corrected", {"residual": 0.5, "noise": 0.49}, {"delta_v": 0.1}, math.sqrt(0.25 - 0.2401), 0.4975),
        ("noise-corrected", {"residual": 0.3, "noise": 0.5}, {"delta_v": 0.1}, 0.0, 0.0),
        ("policy-step", {"tv_step_high": 0.2, "tv_step": 0.01}, {"delta_tv": 0.1}, 0.2, 2.0),
        ("policy-step", {"tv_step_high": 0.05}, {"delta_tv": 0.1}, 0.05, 0.5),
        ("ess-floor", {"ratio_ess": 0.9}, {"least_ess": 0.6}, 0.9, 1.5),
        ("ess-floor", {"ratio_ess": 0.3}, {"least_ess": 0.6}, 0.3, 0.5),
        ("held-out", {"residual_held_out": 0.5, "noise_held_out": 0.3, "residual": 9.0}, {"delta_v": 0.1}, 0.4, 2.0),
        ("held-out", {"residual_held_out": 0.3, "noise_held_out": 0.3, "residual": 9.0}, {"delta_v": 0.1}, 0.0, 0.0),
        # error .4, drift 2 x .1 x .5, so 2 x (.4 + .1)
        ("certificate", CERTAIN | {"gain": 0.5}, {"error_weight": 2.0}, 1.0, 2.0),
        ("certificate", CERTAIN | {"gain": 2.0}, {"error_weight": 2.0}, 1.0, 0.5),
        ("certificate", CERTAIN | {"gain": -1.0}, {"error_weight": 0.0}, 0.0, math.inf),
        ("oracle", {"start_value": 0.6, "next_start_value": 0.3}, {}, 0.6, 2.0),
        ("oracle", {"start_value": 0.3, "next_start_value": 0.6}, {}, 0.3, 0.5),
        ("stable-values", {"diff_network": 9.0, "diff_target": 0.3}, {"delta_v": 0.1}, 0.3, 1.5),
    ],
)
def test_what_each_criterion_watches(name: str, evidence: dict, settings: dict, diff: float, relative: float) -> None:
    seen = CALM._replace(**{field: jnp.asarray(value) for field, value in evidence.items()})
    found = decision(name, seen, **settings)
    np.testing.assert_allclose(found[:2], (diff, relative), rtol=1e-3)
    assert found[2] == (relative <= 1)


@pytest.mark.parametrize("name", criteria.CRITERIA)
def test_nothing_that_is_not_a_number_counts_as_stable(name: str) -> None:
    broken = Evidence(*(jnp.asarray(math.nan) for _ in Evidence._fields))
    assert decision(name, broken)[2] is False


@pytest.mark.parametrize("name", criteria.CRITERIA)
def test_bounds_hold_for_every_criterion(name: str) -> None:
    criterion = criteria.CRITERIA[name]()
    never = Evidence(*(jnp.asarray(math.nan) for _ in Evidence._fields))
    params, state, accepted = criterion.settings(k_min=2, k_max=3), criterion.init(), []
    assert isinstance(params, Bounds)
    for _ in range(6):
        state, accept, _ = criterion.update(state, never, params, jnp.zeros(()))
        accepted.append(bool(accept))
    assert accepted == [False, False, True] * 2
    with pytest.raises(ValueError, match="k_min: expected at most k_max, 3, got 5"):
        criterion.settings(k_min=5, k_max=3).check(1)


@pytest.mark.parametrize("name", criteria.CRITERIA)
def test_members_that_update_periodically_report_their_period(name: str) -> None:
    settings = criteria.CRITERIA[name].settings(k_min=3, k_max=8, decay_fraction=0.5, decay_k_max=True)
    periodic = settings.periodic(5)
    assert type(periodic) is type(settings)
    fixed = (periodic.k_min, periodic.k_max, periodic.decay_fraction, periodic.decay_k_max)
    assert fixed == (5, 5, 0.0, False)
