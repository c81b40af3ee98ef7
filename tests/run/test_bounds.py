"""Every number has bounds and a type, wherever it comes from; names of other libraries lead to ours."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.run.helpers import assert_same_run

import nextpolicy
from nextpolicy import runfiles
from nextpolicy.algos.ppo import PPOSettings
from nextpolicy.cli import main as cli
from nextpolicy.config import FIELDS, ConfigError, NetConfig, RunConfig, TrainConfig, fields, presets
from nextpolicy.experiments import catalogue
from nextpolicy.experiments.suite import SuiteError
from nextpolicy.experiments.task import Task, state_of
from nextpolicy.loop import population
from nextpolicy.report import runs as report
from nextpolicy.run import api, metrics, training
from nextpolicy.run import block as blocks
from nextpolicy.run import job as jobs
from nextpolicy.run.folder import RunError, RunFolder
from nextpolicy.run.run import Run

pytestmark = pytest.mark.quick_compilation

SMALL = {"total_env_steps": 64 * 6, "num_envs": 8, "rollout_length": 8, "minibatch_size": 32, "hidden": (8,)}
SIMPLE = {"epochs": 1, "minibatch_size": 64, "algo": "ppo"}  # compiles sooner
NUMBERS = [name for name, info in FIELDS.items() if info.annotation in (int, float)]
MAY_BE_INFINITE = {"reward_clip", "clip", "value_clip", "max_grad_norm", "rho_max", "delta_v"}


def one_line(kind: Any, call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        call()
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    assert len(said) < 300
    return said


# Fields


def test_every_number_has_bounds() -> None:
    assert set(NUMBERS) == {name for name, info in FIELDS.items() if info.low is not None}


@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_such_number_is_refused(name: str) -> None:
    huge = (1e300, -1e300, 10**39, -(10**30), "1e300", "9" * 400, 10**5000)
    for got in (math.nan, "nan", -math.inf, True, None, "", "x", [], [[1]], {}, object(), *huge):
        said = one_line(ConfigError, lambda got=got: presets.build("four-rooms", **{name: got}))
        assert said.startswith(f"{name}: expected ")
        assert ", got " in said
    traced = FIELDS[name].traced
    for got in (math.nan, 10**39) if traced else ():
        assert name in one_line(ConfigError, lambda got=got: presets.build("four-rooms", sweep={name: [1, got]}))


@pytest.mark.parametrize("name", NUMBERS)
def test_infinity_is_taken_only_where_it_means_something(name: str) -> None:
    if name in MAY_BE_INFINITE:
        assert presets.build("four-rooms", **{name: "inf"}).value(name) == math.inf
    else:
        assert name in one_line(ConfigError, lambda: presets.build("four-rooms", **{name: math.inf}))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: TrainConfig(algorithm=PPOSettings(gamma="0.9")),
        lambda: TrainConfig(algorithm=PPOSettings(gamma=math.nan)),
        lambda: TrainConfig(algorithm=PPOSettings(epochs=2.5)),
        lambda: TrainConfig(algorithm=PPOSettings(normalise_obs=1)),
        lambda: TrainConfig(net=NetConfig(hidden="8,8")),
        lambda: TrainConfig(net=NetConfig(log_std_init=None)),
        lambda: TrainConfig(run=RunConfig(seeds=3)),
        lambda: TrainConfig(run=RunConfig(sweep=[])),
        lambda: presets.build("four-rooms", seeds=[1.5]),
        lambda: presets.build("four-rooms", seeds={1: 2}),
        lambda: presets.build("four-rooms", seeds=range(10**12)),
        lambda: presets.build("four-rooms", sweep={"lam": []}),
        lambda: presets.build("four-rooms", env_options=[[1]]),
        lambda: presets.build("four-rooms", env_options={"a": object()}),
        lambda: presets.build("four-rooms", env_options={"a": math.nan}),
        lambda: presets.build("four-rooms", gamma=1 - 1e-12),  # 1 in float32
        lambda: presets.build(3),
        lambda: presets.build("four-rooms", algo=[1]),
    ],
)
def test_wrong_types_are_refused_from_python(wrong: Callable[[], Any]) -> None:
    one_line(ConfigError, wrong)


def test_what_was_right_is_taken_as_it_was() -> None:
    made = presets.build("four-rooms", num_envs=np.int64(16), gamma=np.float32(0.5), total_env_steps="1e6", seeds="3,5")
    assert (made.environment.num_envs, made.algorithm.gamma, made.run.total_env_steps) == (16, 0.5, 1_000_000)
    assert made.run.seeds == (3, 5)
    assert presets.build("four-rooms", seeds=np.arange(3)).run.seeds == (0, 1, 2)
    assert presets.build("four-rooms", total_env_steps=str(10**11 - 1)).run.total_env_steps == 10**11 - 1
    options = {"a": [1, 2.5, "x", None, True], "b": {"c": (1, 2)}}
    assert presets.build("four-rooms", env_options=options).environment.env_options == options


@pytest.mark.parametrize("env", ["four-rooms", "gymnax/CartPole-v1", "gym/CartPole-v1", "probe/nan"])
@pytest.mark.parametrize("options", [{"time_limit": 10**12}, {"env": 1}, {"name": 1}, {"start": "x"}, {"gravity": "x"}])
def test_options_that_an_environment_cannot_be_made_with_are_one_line(env: str, options: dict[str, Any]) -> None:
    one_line((ValueError, RuntimeError), lambda: jobs.make_job(presets.build(env, env_options=options)))


def test_steps_past_an_int32_stay_exact(tmp_path: Path) -> None:
    block = {"accepted": np.zeros((1, 2), bool)}
    member = presets.build("four-rooms").members()[:1]
    frame = metrics.table(member, 99_999_997, 10_000_000, block, 1.0)
    assert frame["env_steps"].tolist() == [99_999_998 * 10_000_000, 99_999_999 * 10_000_000]
    metrics.write_part(tmp_path, frame)
    assert [(first, last) for first, last, _ in runfiles.parts(tmp_path)] == [(99_999_997, 99_999_998)]


# Blocks


@pytest.mark.parametrize(
    ("block_rounds", "total_env_steps", "room"),
    [(0, 64 * 6, 6), (0, 64 * 6000, 512), (4, 64 * 6, 4), (10**9, 64 * 6, 6), (2**31 - 1, 64 * 6000, 512)],
)
def test_room_is_made_for_no_more_rounds_than_are_run_at_once(
    monkeypatch: pytest.MonkeyPatch, block_rounds: int, total_env_steps: int, room: int
) -> None:
    seen = []
    monkeypatch.setattr(jobs, "build_program", lambda *_, capacity, **__: seen.append(capacity))
    fields = {**SMALL, "block_rounds": block_rounds, "total_env_steps": total_env_steps}
    jobs.make_job(presets.build("probe/action", **fields)).program()
    assert seen == [room]


@pytest.mark.allow_rank_promotion
@pytest.mark.allow_key_reuse
def test_a_block_longer_than_there_is_room_for_is_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_ROUNDS", 4)
    run = nextpolicy.train("probe/action", out=tmp_path / "run", quiet=True, block_rounds=10**9, **{**SMALL, **SIMPLE})
    assert [(first, last) for first, last, _ in metrics.parts(run.path / "metrics")] == [(0, 3), (4, 5)]
    assert run.metrics["round"].tolist() == list(range(6))


@pytest.mark.allow_rank_promotion
@pytest.mark.allow_key_reuse
def test_slow_checkpoints_are_written_less_often_than_the_program_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay buffer can take seconds to save: longer than the rounds there is room for. But blocks end in time."""
    monkeypatch.setattr(jobs, "MAX_ROUNDS", 3)
    monkeypatch.setattr(training, "SAVING_SHARE", 1e-9)
    monkeypatch.setattr(training, "BLOCK_SECONDS", 1e-9)
    fields = {**SMALL, **SIMPLE, "block_rounds": 0, "total_env_steps": 64 * 12}
    run = nextpolicy.train("probe/action", out=tmp_path / "rare", quiet=True, **fields)
    assert [(first, last) for first, last, _ in metrics.parts(run.path / "metrics")] == [(0, 0), (1, 1), (2, 11)]
    often = nextpolicy.train("probe/action", out=tmp_path / "often", quiet=True, **{**fields, "block_rounds": 3})
    assert_same_run(run, often)
    monkeypatch.setattr(training, "MOST_SECONDS", 1e-9)
    run = nextpolicy.train("probe/action", out=tmp_path / "most", quiet=True, **fields)
    assert len(metrics.parts(run.path / "metrics")) == 12


def test_a_block_of_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(state: int, rounds: int) -> tuple[int, dict[str, np.ndarray], np.ndarray]:
        rows = np.where(np.arange(3) < rounds, state + np.arange(3), -1)[None]
        return state + rounds, {"round": rows}, 10 * rows

    checks: list[int] = []
    monkeypatch.setattr(blocks.time, "perf_counter", iter([100.0, 107.0]).__next__)
    monkeypatch.setattr(blocks.interrupt, "check", lambda: checks.append(0))
    program = population.Program(init=lambda seeds: None, block=call, capacity=3, mesh=None)  # type: ignore[arg-type, return-value]
    state, block = blocks.run_block(program, 5, 5, 8)  # type: ignore[arg-type]
    assert (state, block.first, block.rounds, block.seconds) == (13, 5, 8, 7.0)
    assert block.metrics["round"].tolist() == [list(range(5, 13))]
    assert block.observed.tolist() == [list(range(50, 130, 10))]
    assert len(checks) == 3


# Files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = presets.build("probe/action", algo=("ppo",), **SMALL)
    RunFolder.create(tmp_path / "run", config, {"custom": []}).unlock()
    return tmp_path / "run"


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize(
    "values",
    [
        {"env_options": [[1]]},
        {"custom": -1},
        {"custom": [1]},
        {"about": "x"},
        {"about": "x", "num_envs": -1},
        {"num_envs": 10**400},
        {"seeds": 10**9},
        {"entropy_coef": math.nan},
        {"env": 3},
        {"self": 1},
    ],
)
def test_a_config_with_another_type_in_it_is_one_line(folder: Path, values: dict[str, Any]) -> None:
    change(folder / "config.json", **values)
    one_line(RunError, lambda: api.load(folder))
    if list(values) != ["custom"]:
        one_line(report.ReportError, lambda: report.load(folder))


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "1" * 5000, "\udcff"])
def test_what_is_no_json_is_one_line(folder: Path, content: str) -> None:
    (folder / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    one_line(RunError, lambda: api.load(folder))
    one_line(report.ReportError, lambda: report.load(folder))


@pytest.mark.parametrize("member", ["Infinity", "-1", "1.5", "true", "null", '"x"', "1" * 400])
def test_an_evaluation_of_no_member_is_one_line(folder: Path, member: str) -> None:
    (folder / "evaluation.json").write_text(f'[{{"member": {member}, "mean": 1.0}}]')
    assert "evaluation.json cannot be read (member: expected " in one_line(
        report.ReportError, lambda: report.load(folder)
    )


@pytest.mark.parametrize("mean", ["Infinity", "1e300", '"x"', "[]", "1" * 400])
def test_an_evaluation_without_a_mean_is_one_line(folder: Path, mean: str) -> None:
    (folder / "evaluation.json").write_text(f'[{{"member": 0, "mean": {mean}}}]')
    assert "evaluation.json cannot be read" in one_line(report.ReportError, lambda: report.load(folder))


@pytest.mark.parametrize("status", ["{}", '{"rounds_done": 1e400}', f'{{"state": [], "rounds_done": {10**400}}}'])
def test_a_status_of_nonsense_is_read_as_unknown(folder: Path, status: str, tmp_path: Path) -> None:
    (folder / "status.json").write_text(status)
    assert "members=1" in repr(api.load(folder))
    task = Task("probe/action", RunFolder.open(folder).config(), str(folder), 0)
    assert state_of(task)[:3] == ("cut off", 0, 6)


@pytest.mark.parametrize(
    "lines",
    [
        "seeds = 1000000000",
        "seeds = [1.5]",
        "seeds = 1e300",
        "evaluate_episodes = 1000000000",
        "evaluate_episodes = nan",
        f"seeds = {'9' * 5000}",
        f"about = {'[' * 100_000}",
        "[fields]\nentropy_coef = nan",
        "[fields]\nblock_rounds = 1e18",
        "[fields]\nenv_options = [[1]]",
        "[fields]\nenv_options = {a = 1979-05-27}",
        "[fields.sweep]\nlam = []",
        '[fields]\npreset = "default"',
        "[fields]\nself = 1",
    ],
)
def test_a_suite_with_such_a_number_is_one_line(tmp_path: Path, lines: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'environments = ["probe/action"]\n{lines}')
    one_line(SuiteError, lambda: catalogue.load(str(path)))


@pytest.mark.parametrize(
    "given", [{"seed": 10**23}, {"seed": -1}, {"seed": 0.5}, {"episodes": 10**9}, {"num_envs": "x"}]
)
def test_evaluations_have_bounds_in_python(given: dict[str, Any]) -> None:
    run = Run(None, None)  # type: ignore[arg-type]  # not looked at before the numbers are
    assert one_line(ConfigError, lambda: next(iter(run.evaluations([0], **given)))).startswith(
        f"{next(iter(given))}: expected"
    )


# Names


THEIRS = {
    "lr": "learning_rate",
    "n_envs": "num_envs",
    "ent_coef": "entropy_coef",
    "vf_coef": "value_coef",
    "total_timesteps": "total_env_steps",
    "n_steps": "rollout_length",
    "num_steps": "rollout_length",
    "num_minibatches": "minibatch_size",
    "n_epochs": "epochs",
    "update_epochs": "epochs",
    "batch_size": "minibatch_size",
    "gae_lambda": "lam",
    "clip_range": "clip",
    "clip_coef": "clip",
    "clip_eps": "clip",
    "anneal_lr": "learning_rate_final",
    "seed": "seeds",
    "total_steps": "total_env_steps",
    "policy_kwargs": "hidden",
    "normalize_advantage": "advantage_norm",
    "NUM_ENVS": "num_envs",
    "unroll_length": "rollout_length",
    "entropy_cost": "entropy_coef",
}


def test_every_name_of_the_table_leads_to_an_option() -> None:
    options = set(FIELDS) | {"quiet", "out", "episodes", "greedy", "video"}
    assert set(fields.OTHER_NAMES.values()) <= options
    assert not set(fields.OTHER_NAMES) & options


@pytest.mark.parametrize("theirs", THEIRS)
def test_names_of_other_libraries_suggest_ours(theirs: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    ours = THEIRS[theirs]
    words = f"did you mean '{ours}'?"
    assert words in one_line(ConfigError, lambda: presets.build("four-rooms", **{theirs: 1}))
    path = tmp_path / "mine.toml"
    path.write_text(f'environments = ["probe/action"]\n[fields]\n{theirs} = 1')
    assert words in one_line(SuiteError, lambda: catalogue.load(str(path)))
    for flag in (f"--{theirs}", f"--{theirs.replace('_', '-')}"):
        assert cli.main(["train", "four-rooms", flag, "1"]) == 2
        option = f"--{ours.replace('_', '-')}"
        assert f"did you mean '{option}'?" in capsys.readouterr().err


def test_an_environment_by_another_name_is_shown_the_way() -> None:
    said = one_line(ConfigError, lambda: nextpolicy.train(env_id="CartPole-v1"))
    assert "unknown field 'env_id'; did you mean 'env'?" in said


def test_help_is_a_command(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["help"]) == 0
    overview = capsys.readouterr().out
    assert overview.startswith("nextpolicy ")
    assert "usage: nextpolicy COMMAND" in overview
    with pytest.raises(SystemExit) as end:
        cli.main(["help", "train"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: nextpolicy train")


# Presets


@pytest.mark.parametrize(
    ("preset", "fields", "size"),
    [
        ("four-rooms", {}, 256),
        ("four-rooms", {"num_envs": 4}, 256),  # still divides: nothing changes
        ("four-rooms", {"num_envs": 1}, 32),  # 4 minibatches of 128 samples
        ("four-rooms", {"num_envs": "3", "rollout_length": "5"}, 5),  # 15 samples: 3 minibatches, as 4 do not go
        ("brax", {"num_envs": 64}, 32),  # 20 of 640
        ("brax", {"num_envs": 7, "rollout_length": 1}, 1),
        ("default", {"num_envs": 1}, 16),
        ("default", {"num_envs": 1, "minibatch_size": 64}, 64),  # the user's own
        ("minatar", {"rollout_length": 100}, 800),
    ],
)
def test_where_the_size_does_not_divide_minibatches_are_as_many(preset: str, fields: dict[str, Any], size: int) -> None:
    assert presets.build("probe/action", preset=preset, **fields).algorithm.minibatch_size == size


def test_a_size_of_the_users_that_does_not_divide_is_refused() -> None:
    said = one_line(ConfigError, lambda: presets.build("four-rooms", num_envs=1, minibatch_size=256))
    assert said.startswith("minibatch_size: expected a divisor of the batch size, num_envs * rollout_length")
    assert "num_envs: expected" in one_line(ConfigError, lambda: presets.build("four-rooms", num_envs=0))


# Populations


def test_members_side_by_side_on_a_cpu_are_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    said = one_line(
        ConfigError,
        lambda: nextpolicy.train("probe/action", out=tmp_path / "run", quiet=True, population="vmap", **SMALL),
    )
    assert "deadlock" in said
    assert "'force-vmap'" in said
    assert not (tmp_path / "run").exists()


def test_a_run_of_a_gpu_can_be_loaded_on_a_cpu(tmp_path: Path) -> None:
    config = presets.build("probe/action", population="vmap", algo="ppo", **SMALL)
    RunFolder.create(tmp_path / "run", config, {"custom": []}).unlock()
    assert len(api.load(tmp_path / "run").members) == 1
    assert "deadlock" in one_line(ConfigError, lambda: api.resume(tmp_path / "run", quiet=True))


def test_modes_by_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [population.population_mode(m) for m in ("auto", "map", "force-vmap")] == ["map", "map", "vmap"]
    monkeypatch.setattr(population.jax, "default_backend", lambda: "gpu")
    assert [population.population_mode(m) for m in ("auto", "map", "vmap")] == ["vmap", "map", "vmap"]


@pytest.mark.allow_rank_promotion
@pytest.mark.allow_key_reuse
@pytest.mark.parametrize(("seeds", "mode"), [(1, "map"), (2, "vmap")])
def test_a_single_member_has_no_axis_of_members(monkeypatch: pytest.MonkeyPatch, seeds: int, mode: str) -> None:
    seen: list[str] = []
    over_members = population.over_members
    monkeypatch.setattr(population, "over_members", lambda mode, *a: (seen.append(mode), over_members(mode, *a))[1])
    job = jobs.make_job(presets.build("probe/action", seeds=seeds, population="force-vmap", **SMALL))
    program = population.build_program(job.setup, job.env, job.hypers, capacity=2, devices=population.jax.devices()[:1])
    program.block(program.init(job.seeds), 1)
    assert len(seen) >= 2  # init and block
    assert set(seen) == {mode}


@pytest.mark.allow_rank_promotion
@pytest.mark.allow_key_reuse
def test_the_name_of_the_mode_does_not_change_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(BaseException):
        pass

    def text_of(mode: str) -> str:
        config = presets.build("probe/action", seeds=2, population=mode, **SMALL)
        job = jobs.make_job(config)

        class Keeper:
            def recall(self, hypers: Any, seeds: Any) -> None:
                return None

            def lower(self, init: Any, block: Any, arguments: Any, seeds: Any) -> Any:
                raise Seen(block.lower(*arguments).as_text())

        devices = population.jax.devices()[:1]
        program = population.build_program(job.setup, job.env, job.hypers, capacity=4, devices=devices, keeper=Keeper())
        with pytest.raises(Seen) as caught:
            program.init(job.seeds)
        return str(caught.value)

    forced, alone = text_of("force-vmap"), text_of("map")
    with monkeypatch.context() as patch:
        patch.setattr(population, "population_mode", lambda mode: mode)
        assert text_of("vmap") == forced
    assert alone != forced
