"""Pages that name fields, options and columns, compared with what there is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import nextpolicy
from nextpolicy.algos import VARIANTS
from nextpolicy.cli import evaluate, train
from nextpolicy.config import FIELDS
from nextpolicy.config.fields import OTHER_NAMES, active_fields, settings_classes
from nextpolicy.report.columns import metrics_read

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]

DOCS = Path(__file__).parents[2] / "docs"
TINY = {"num_envs": 4, "rollout_length": 8, "minibatch_size": 16, "epochs": 1, "hidden": (8,), "total_env_steps": 64}


def rows(page: str) -> list[list[str]]:
    """The cells of every row of the tables of a page."""
    lines = [line for line in (DOCS / page).read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def in_code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The columns of a run of every algorithm's variants, and of one of PPO alone."""
    found: set[str] = set()
    variants = {a: tuple(v for v, (made, _) in VARIANTS.items() if made.name == a) for a in ("ppo", "sac", "pqn")}
    runs: dict[str, tuple[str, ...]] = {"alone": ("ppo",), **variants}
    for name, algo in runs.items():
        env = "probe/action-continuous" if "sac" in algo else "probe/action"
        own = active_fields(*settings_classes(algo, "stable-values"))
        fields = {field: value for field, value in TINY.items() if field in own}
        out = tmp_path_factory.mktemp("columns") / name
        found |= set(nextpolicy.train(env, algo=algo, out=out, quiet=True, **fields).metrics.columns)
    return found


def test_every_recorded_column_is_explained_and_no_other(columns: set[str]) -> None:
    explained = {name for row in rows("reading-a-run.md") for name in in_code(row[0])}
    assert explained - {"sweep_<field>"} == columns
    assert metrics_read() <= explained


def test_advice_names_fields_and_columns(columns: set[str]) -> None:
    known = {*columns, *FIELDS, *VARIANTS, "run.members"}
    for row in rows("reading-a-run.md"):
        for name in (n for cell in row[1:] for n in in_code(cell)):
            assert name.split("=")[0].split("[")[0] in known, name


ARGUMENTS = {p for f in (nextpolicy.train, nextpolicy.resume, nextpolicy.load) for p in inspect.signature(f).parameters}


def exists(name: str) -> bool:
    """Whether a name in the column "here" is a field, an argument, an option or part of the API."""
    if name.startswith("--"):
        return any(name in action.option_strings for made in (train, evaluate) for action in made.parser()._actions)
    if name.startswith(("nextpolicy.", "run.")):
        owner = nextpolicy if name.startswith("nextpolicy.") else nextpolicy.Run
        return hasattr(owner, name.split(".")[1])
    return name in FIELDS or name in ARGUMENTS


def test_names_for_users_of_other_libraries_exist() -> None:
    named = {name for row in rows("migration.md") for name in in_code(row[1])}
    assert len(named) > 35
    assert [name for name in sorted(named) if not exists(name)] == []


def test_the_page_and_the_error_messages_agree() -> None:
    """`OTHER_NAMES` is what a message suggests for a name of another library."""
    compared = 0
    for theirs, ours, *_ in rows("migration.md"):
        names = [name.lstrip("-").replace("-", "_").lower() for name in in_code(theirs)]
        for name in names:
            if name in OTHER_NAMES:
                compared += 1
                assert OTHER_NAMES[name] in {n.lstrip("-") for n in in_code(ours)}, name
    assert compared > 25


def test_fields_on_other_new_pages_exist(columns: set[str]) -> None:
    for page in ("choosing.md", "pictures.md", "when-to-use.md", "criteria.md", "sac.md", "pqn.md"):
        text = re.sub(r"^```.*?^```$", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for name in in_code(text):
            if re.fullmatch(r"(delta|k|decay|static|diff|rho|ratio|learning|total|entropy)_\w+", name):
                assert name in FIELDS or name in columns, f"{page}: {name}"
