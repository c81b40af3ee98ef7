"""One program for all criteria: each member is as if its criterion had been named, and a sweep compiles once."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import pytest
from tests.loop.helpers import assert_same, build, member, run, tiny, train

from nextpolicy.config import ConfigError, TrainConfig
from nextpolicy.criteria import CRITERIA
from nextpolicy.criteria.any_signal import SIGNALS, Signal

GATE: dict[str, Any] = {"algo": "sv-dynamic", "k_min": 1, "k_max": 7, "delta_v": 0.3, "held_out": 0.25}
SWEPT = ("stable-values", "noise-corrected", "policy-step", "ess-floor")


def test_the_names_are_those_of_the_criteria_in_order() -> None:
    assert get_args(Signal) == tuple(c.name for c in SIGNALS)
    assert (*get_args(Signal), "any-signal") == tuple(CRITERIA)


def _own(name: str) -> dict[str, Any]:
    """The gate of one criterion, without the thresholds of others."""
    values = name in ("stable-values", "noise-corrected")
    fields = {k: v for k, v in GATE.items() if k != "delta_v" or values}
    return {**fields, **({"delta_tv": 0.03} if name == "policy-step" else {}), "criterion": name}


@pytest.mark.quick_compilation
def test_a_member_is_as_if_its_criterion_had_been_named() -> None:
    config = tiny(**GATE, criterion="any-signal", sweep={"signal": SWEPT}, delta_tv=0.03)
    job, program = build(config)
    state, metrics = run(job, program, [10, 14])
    assert job.hypers.criterion.signal.tolist() == [0.0, 2.0, 4.0, 5.0]
    decisions = {name: metrics["accepted"][i].tolist() for i, name in enumerate(SWEPT)}
    assert len({tuple(x) for x in decisions.values()}) >= 3  # they do decide differently
    for i, name in enumerate(SWEPT):
        alone, seen = train(tiny(**_own(name)), [10, 14])
        assert_same(member(alone.agent.learner, 0), member(state.agent.learner, i))
        np.testing.assert_array_equal(seen["accepted"][0], metrics["accepted"][i])
        own = metrics[f"signal_{name.replace('-', '_')}"][i]
        np.testing.assert_array_equal(own, metrics["diff_over_threshold"][i])


def test_swept_names_are_kept_in_the_configuration() -> None:
    config = tiny(algo="sv-dynamic", criterion="any-signal", sweep="signal=oracle,ess-floor k_max=4,8")
    assert TrainConfig.from_flat(json.loads(config.to_json())) == config
    assert config.members()[0].variant == "sv-dynamic[signal=oracle,k_max=4]"
    with pytest.raises(ConfigError, match=r"signal: expected one of stable-values, .*, got 'orakle'; did you mean"):
        tiny(criterion="any-signal", sweep={"signal": ["orakle"]})
    with pytest.raises(ConfigError, match="expected each value once"):
        tiny(criterion="any-signal", sweep={"signal": ["oracle", "oracle"]})
