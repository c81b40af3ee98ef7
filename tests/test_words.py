"""Sentences that users act on, checked against the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nextpolicy.config import FIELDS
from nextpolicy.nets import torsos

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
HIDDEN = (8, 8)
TORSOS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (torsos.MLP(1, HIDDEN, "relu", layer_norm=True), (3,)),
    "small-cnn": (torsos.SmallCNN(HIDDEN, layer_norm=True), (10, 10, 2)),
    "nature": (torsos.NatureCNN(HIDDEN, layer_norm=True), (84, 84, 1)),
    "impala": (torsos.Impala(hidden=HIDDEN, layer_norm=True), (16, 16, 1)),
}


@pytest.mark.parametrize("name", TORSOS)
def test_the_help_of_layer_norm_says_what_is_normalised(name: str) -> None:
    torso, shape = TORSOS[name]
    params = jax.eval_shape(torso.init, jax.random.key(0), jnp.zeros((1, *shape)))["params"]
    normalised = sum(layer.startswith("LayerNorm") for layer in params)
    has_convolution = name == "small-cnn"  # as the help says
    assert normalised == len(HIDDEN) + has_convolution
    words = FIELDS["layer_norm"].help
    assert "after each dense layer" in words
    assert "after the convolution of small-cnn" in words
    assert "not in those of impala and nature" in words


def test_retrace_is_not_called_textbook_retrace() -> None:
    assert "biased" in FIELDS["advantage_kind"].help
    for part in ("algos/ppo.py", "config/presets.py", "core/returns.py"):
        assert "textbook" not in (ROOT / "src" / "nextpolicy" / part).read_text(), part


def test_the_paper_is_named() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    for words in (
        "Approximate Next Policy Sampling: Replacing Conservative Target Policy Updates in Deep RL",
        "Dillon Sandhu and Ronald Parr",
        "arXiv 2605.05481",
        "@article{",
    ):
        assert words in readme
    for part in ("core/returns.py", "criteria/stable_values.py", "loop/round.py", "algos/ppo.py"):
        assert "Sandhu and Parr" in (ROOT / "src" / "nextpolicy" / part).read_text(), part


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_nothing_is_installed_from_an_index_that_does_not_have_it(page: Path) -> None:
    assert not re.search(r"pip install [\"']?nextpolicy", page.read_text())


def test_ppo_is_not_said_to_save_what_it_computes() -> None:
    """Both algorithms are one program, which evaluates the target whether or not it is needed."""
    for page in PAGES:
        assert "costs nothing over PPO" not in page.read_text(), page.name
