"""A second criterion, registered or passed as an object; plain and static members do not ask it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import pytest

import nextpolicy
from nextpolicy import criteria
from nextpolicy.cli import main as cli
from nextpolicy.config import FIELDS, ConfigError, presets
from nextpolicy.run.job import make_job
from nextpolicy.settings import Settings, pytree, setting
from nextpolicy.types import Array, Evidence, Metrics

pytestmark = pytest.mark.quick_compilation

SMALL = {"num_envs": 4, "rollout_length": 8, "minibatch_size": 16, "hidden": (8,), "block_rounds": 6}
SMALL |= {"total_env_steps": 32 * 12, "quiet": True}


@pytree
@dataclass(frozen=True)
class PatienceSettings(Settings):
    """Those of `Patience`."""

    patience: int = setting(3, "Rounds to wait.", traced=True, low=1, high=100)
    grumpy: bool = setting(False, "Whether it never accepts.")

    def check(self, batch_size: int) -> None:
        """A wait of 13 is unlucky."""
        if self.patience == 13:
            raise ConfigError("patience: expected a number other than 13, got 13")


class Patience:
    """Accepts every `patience` rounds."""

    name: ClassVar[str] = "patience"
    settings: ClassVar[type[Settings]] = PatienceSettings

    def init(self) -> Array:
        return jnp.zeros((), jnp.int32)

    def update(
        self, state: Array, evidence: Evidence, params: PatienceSettings, progress: Array
    ) -> tuple[Array, Array, Metrics]:
        waited = state + 1
        accept = (waited >= params.patience) & (not params.grumpy)
        return jnp.where(accept, 0, waited), accept, {"waited": waited, "seen_ess": evidence.ratio_ess}


@pytest.fixture
def patience() -> Iterator[None]:
    criteria.register(Patience)
    yield
    del criteria.CRITERIA["patience"]


@pytest.mark.usefixtures("patience")
def test_a_criterion_is_chosen_by_name_swept_and_recorded(tmp_path):
    fields: dict[str, Any] = {"algo": ("ppo", "sv-static", "sv-dynamic"), "static_k": 4, "criterion": "patience"}
    sweep = {"patience": (2, 3)}
    run = nextpolicy.train("probe/action", out=tmp_path / "run", sweep=sweep, **fields, **SMALL)
    accepted = run.metrics.groupby("member")["accepted"].sum().tolist()
    assert accepted == [12, 12, 3, 3, 6, 4], "ppo every round, static every 4, the others as the criterion says"
    assert run.metrics["waited"].max() > 1
    assert "k_min" not in run.metrics, "no fields of another criterion"
    assert (run.metrics.loc[run.metrics["variant"].str.startswith("sv-static"), "rounds_held"].max()) == 4
    again = nextpolicy.load(run.path)
    assert (again.config.run.criterion, again.config.value("patience")) == ("patience", 3)
    assert "delta_v" not in again.config.flat(), "the preset's fields of another criterion are left out"


@pytest.mark.usefixtures("patience")
def test_the_command_line_takes_its_name_and_its_options(tmp_path, capsys):
    options = ["--criterion", "patience", "--patience", "5", "--num-envs", "4", "--rollout-length", "8", "--quiet"]
    options += ["--minibatch-size", "16", "--hidden", "8", "--total-env-steps", str(32 * 6)]
    assert cli.main(["train", "probe/action", "--out", str(tmp_path / "run"), *options]) == 0
    assert nextpolicy.load(tmp_path / "run").metrics["accepted"].sum() == 1
    assert cli.main(["train", "probe/action", "--criterion", "patient"]) == 2
    said = capsys.readouterr().err
    assert "any-signal, patience, got 'patient'; did you mean 'patience'?" in said


@pytest.mark.usefixtures("patience")
def test_a_criterion_checks_its_own_settings_and_those_of_others_are_refused():
    assert "patience" in FIELDS
    with pytest.raises(ConfigError, match="patience: expected a number other than 13"):
        presets.build("probe/action", criterion="patience", patience=13)
    with pytest.raises(ConfigError, match="patience: expected a number other than 13"):
        presets.build("probe/action", criterion="patience", sweep={"patience": (12, 13)})
    presets.build("probe/action", algo="ppo", criterion="patience", patience=13)  # which does not ask it
    with pytest.raises(ConfigError, match=r"patience: expected a whole number .*, got 0"):
        presets.build("probe/action", criterion="patience", patience=0)
    with pytest.raises(
        ConfigError, match=r"k_min: expected a field of this .* got one of criteria stable-values, network-change"
    ):
        presets.build("probe/action", criterion="patience", k_min=1)


def test_objects_and_names_are_not_mixed_up():
    config = presets.build("probe/action")
    with pytest.raises(ConfigError, match="criterion_params: expected a criterion object with them"):
        make_job(config, criterion_params={"patience": jnp.ones(1)})
    with pytest.raises(ConfigError, match="criterion: expected the object that the run was trained with"):
        make_job(presets.build("probe/action", criterion="own"))
    for name in ("stable-values", "own"):
        with pytest.raises(ValueError, match="name: expected a name that is not taken"):
            criteria.register(type("Twin", (Patience,), {"name": name}))


def test_plain_members_do_not_ask_an_own_criterion(tmp_path):
    class Never:
        def init(self):
            return ()

        def update(self, state, evidence, params, progress):
            return state, jnp.asarray(False), {}

    run = nextpolicy.train("probe/action", algo=("ppo", "sv-dynamic"), criterion=Never(), out=tmp_path / "r", **SMALL)
    assert run.metrics.groupby("member")["accepted"].sum().tolist() == [12, 0]


@pytest.mark.parametrize("wrong", [Patience, 5, object()], ids=["class", "number", "object"])
def test_what_is_no_criterion_is_one_line(tmp_path, wrong):
    with pytest.raises(
        ConfigError, match=r"criterion: expected a name, or an object with init\(\) and update\(\), got"
    ):
        nextpolicy.train("probe/action", criterion=wrong, out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("returned", [None, (0, 0.3, {}), (1.5, True, {})], ids=["nothing", "number", "other state"])
def test_a_criterion_that_returns_something_else_is_noticed_before_a_folder_is_made(tmp_path, returned):
    class Odd:
        def init(self):
            return jnp.zeros((), jnp.int32)

        def update(self, state, evidence, params, progress):
            return returned

    with pytest.raises(ValueError, match=r"^criterion Odd: expected update to return "):
        nextpolicy.train("probe/action", criterion=Odd(), out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("factor", [0.9, [0.9, 0.99], jnp.ones(3)], ids=["scalar", "list", "too long"])
def test_parameters_have_an_entry_for_each_member(tmp_path, factor):
    with pytest.raises(ConfigError, match="criterion_params: expected arrays with a leading axis of 2, one entry per"):
        nextpolicy.train(
            "probe/action", criterion=Patience(), criterion_params=factor, seeds=2, out=tmp_path / "run", **SMALL
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("patience")
def test_programs_of_registered_classes_are_not_cached():
    """Their code is not part of a cached program's name, so an edited class must be traced again."""
    assert make_job(presets.build("probe/action")).by_name
    assert not make_job(presets.build("probe/action", criterion="patience")).by_name


def test_a_named_criterion_is_not_replaced_on_resume(tmp_path):
    run = nextpolicy.train("probe/action", algo="ppo", out=tmp_path / "run", **SMALL)
    with pytest.raises(ValueError, match="was trained without a custom criterion, got one"):
        nextpolicy.resume(run.path, criterion=Patience(), quiet=True)


@pytest.mark.usefixtures("patience")
def test_a_static_field_is_not_swept():
    with pytest.raises(ConfigError, match="sweep: expected fields that members may differ in"):
        presets.build("probe/action", criterion="patience", sweep={"grumpy": (True, False)})


def test_a_field_name_belongs_to_one_section():
    @pytree
    @dataclass(frozen=True)
    class Taken(Settings):
        gamma: float = setting(0.5, "Another gamma.", low=0, high=1)

    criteria.register(type("Twin", (Patience,), {"name": "twin", "settings": Taken}))
    try:
        with pytest.raises(ConfigError, match="settings: expected each field name once, got 'gamma'"):
            presets.build("probe/action", criterion="twin")
    finally:
        del criteria.CRITERIA["twin"]


@pytest.mark.parametrize(
    ("metric", "words"), [({"round": 1.0}, "got 'round'"), ({"three": jnp.zeros(3)}, r"got 'three' of shape \(3,\)")]
)
def test_metrics_are_scalars_with_names_of_their_own(tmp_path, metric, words):
    class Chatty:
        def init(self):
            return ()

        def update(self, state, evidence, params, progress):
            return state, jnp.asarray(True), metric

    with pytest.raises(ValueError, match=f"metrics: expected .*{words}"):
        nextpolicy.train("probe/action", criterion=Chatty(), out=tmp_path / "run", **SMALL)
