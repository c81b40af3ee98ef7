"""Exported policies with faults in their description: each is run, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import nextpolicy
from nextpolicy.export import numpy_policy

from . import documents
from .test_fuzz import SLOW, TINY, _as_main, judged

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]
pytestmark += [pytest.mark.no_cover]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an exported policy of convolutions, residual blocks, normalised layers and dense ones."""
    root = tmp_path_factory.mktemp("exports")
    net = {"torso": "impala", "layer_norm": True, "total_env_steps": 32}
    run = nextpolicy.train("gymnax/Breakout-MinAtar", preset="default", out=root / "run", quiet=True, **{**TINY, **net})
    run.export(root / "policy")
    (root / "work").mkdir()
    return root


@pytest.mark.parametrize("count", [200, pytest.param(5_000, marks=SLOW)])
def test_damaged_descriptions(folder: Path, count: int) -> None:
    """As a stranger hands them over: without digests, which would end nearly all of them at once."""
    file = folder / "policy" / "policy.json"
    description = json.loads(file.read_bytes())
    description.pop("digest", None)
    description.pop("arrays", None)
    kinds = {layer["kind"] for layer in description["network"]["layers"]}
    assert {"conv", "residual", "dense", "max_pool"} <= kinds, kinds
    accepted = []

    def use() -> int:
        policy = numpy_policy.load(folder / "policy")
        policy.sample(policy._example(), np.random.default_rng(0))
        accepted.append(policy)
        return 0

    def answer(given: tuple[str, bytes]) -> int:
        file.write_bytes(given[1])
        return _as_main(use)

    inputs = documents.jsons(5, count, {"policy.json": description})
    with np.errstate(all="ignore"):
        judged(inputs, count, answer, folder / "run", folder / "work")
    assert count / 50 < len(accepted) < count / 2
