"""A program is traced once: found again for the same configuration and code, and for no other."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments.classic_control.cartpole import CartPole

from nextpolicy.config import TrainConfig, presets
from nextpolicy.core import losses, minibatch
from nextpolicy.criteria.stable_values import StableValues
from nextpolicy.loop import population
from nextpolicy.nets import build, heads, torsos
from nextpolicy.run import traced
from nextpolicy.run.job import make_job
from nextpolicy.tabular import four_rooms_mdp

SMALL = {"num_envs": 4, "rollout_length": 8, "minibatch_size": 16, "hidden": (8,), "total_env_steps": 320}


class Counted:
    """Two functions in the form of `init` and `block`, and how often they were traced."""

    def __init__(self) -> None:
        self.traces = 0
        self.init, self.block = jax.jit(self._init), jax.jit(self._block, donate_argnums=1)

    def _init(self, seeds: jax.Array) -> dict[str, jax.Array]:
        self.traces += 1
        return {"x": jnp.arange(3.0) + seeds[0], "key": jax.random.key(1)}

    def _block(
        self, scale: jax.Array, state: dict[str, jax.Array], rounds: jax.Array, warming: jax.Array
    ) -> tuple[Any, Any, None]:
        self.traces += 1
        total = jnp.sum(state["x"]) + rounds
        return {"x": state["x"] * scale, "key": state["key"]}, {"total": jnp.where(warming, 0.0, total)}, None


SCALE, SEEDS = jnp.float32(2.0), jnp.zeros(2, jnp.uint32)
NUMBERS = (np.int32(5), np.bool_(False))


def programs(folder: Path, about: str = "a", scale: Any = SCALE) -> tuple[Any, Any, int]:
    """Both programs as at a start, lowered, and the number of functions traced for it."""
    functions, keeper = Counted(), traced.Keeper(folder, about)
    lowered = keeper.recall(scale, SEEDS)
    if lowered is None:
        state = jax.eval_shape(functions.init, SEEDS)
        functions.traces = 0
        lowered = keeper.lower(functions.init, functions.block, (scale, state, *NUMBERS), SEEDS)
    return *lowered, functions.traces


def lowered_and_run(folder: Path, about: str = "a") -> tuple[Any, int]:
    """Leaves of the state, metrics and observed after init and one block; and the number of functions traced."""
    init, block, traces = programs(folder, about)
    state, *outputs = block.compile()(SCALE, init.compile()(SEEDS), *NUMBERS)
    return (jax.tree.leaves(state), *outputs), traces


def test_the_second_start_traces_nothing_and_gives_the_same(tmp_path: Path) -> None:
    for traced_at_this_start in (True, False, False):
        ((key, x), metrics, observed), traces = lowered_and_run(tmp_path)
        assert bool(traces) == traced_at_this_start
        np.testing.assert_array_equal(x, [0.0, 2.0, 4.0])
        assert jax.random.key_data(key).tolist() == jax.random.key_data(jax.random.key(1)).tolist()
        assert (float(metrics["total"]), observed) == (8.0, None)
    assert len(list(tmp_path.iterdir())) == 2
    assert lowered_and_run(tmp_path, "b")[1], "another configuration is another program"


def test_the_state_is_donated(tmp_path: Path) -> None:
    init, block, _ = programs(tmp_path)
    assert "@jit_block" in block.lowered.as_text(), "known by its name"
    state = init.compile()(SEEDS)
    block.compile()(SCALE, state, *NUMBERS)
    assert all(leaf.is_deleted() for leaf in state)
    assert not SCALE.is_deleted()


@pytest.mark.parametrize("damage", [b"", b"not a program", None])
@pytest.mark.parametrize("program", ["init", "block"])
def test_a_damaged_file_is_written_anew(tmp_path: Path, program: str, damage: bytes | None) -> None:
    lowered_and_run(tmp_path)
    (file,) = tmp_path.glob(f"*-{program}")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    ((_, x), _, _), traces = lowered_and_run(tmp_path)
    assert traces
    np.testing.assert_array_equal(x, [0.0, 2.0, 4.0])
    assert not lowered_and_run(tmp_path)[1]


def test_jax_reads_nothing_of_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered_and_run(tmp_path)
    (file,) = tmp_path.glob("*-init")
    whole, deserialize = file.read_bytes(), jax.export.deserialize
    seen: list[bytes] = []
    monkeypatch.setattr(jax.export, "deserialize", lambda data: seen.append(bytes(data)) or deserialize(data))
    for place in range(7, len(whole), len(whole) // 7):
        damaged = whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :]
        file.write_bytes(damaged)
        ((_, x), _, _), traces = lowered_and_run(tmp_path)
        assert traces
        assert not any(text and text in damaged for text in seen), "JAX would crash on some damage"
        np.testing.assert_array_equal(x, [0.0, 2.0, 4.0])


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lowered_and_run(tmp_path / "traced")
    assert (tmp_path / "traced").stat().st_mode & 0o777 == 0o700
    (tmp_path / "traced").chmod(0o777)
    for _ in range(2):
        ((_, x), _, _), traces = lowered_and_run(tmp_path / "traced")
        assert traces
        np.testing.assert_array_equal(x, [0.0, 2.0, 4.0])
    (said,) = capsys.readouterr().err.splitlines()
    assert "expected a folder that only you can write to, got mode 777" in said


def test_a_program_for_other_shapes_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "fingerprint", lambda *_: "same")
    lowered_and_run(tmp_path)
    *_, traces = programs(tmp_path, scale=jnp.float32([2.0, 3.0, 4.0]))
    assert traces, "hyperparameters of another shape"


def test_what_cannot_be_kept_runs_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert lowered_and_run(blocked / "folder")[1], "a folder that cannot be made"

    def broken(*_: Any, **__: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(jax.export, "export", broken)
    ((_, x), _, _), _ = lowered_and_run(tmp_path / "fresh")
    np.testing.assert_array_equal(x, [0.0, 2.0, 4.0])


def changes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Things a user may do between two starts of one process, each of which is another program."""
    surrogate = losses.clipped_surrogate

    @functools.wraps(surrogate)
    def wrapped(*arguments: Any) -> Any:
        return 2.0 * surrogate(*arguments)

    def scaled(factor: float) -> Any:
        return lambda *arguments: factor * surrogate(*arguments)

    put = monkeypatch.setattr
    return {
        "replaced": lambda: put(losses, "clipped_surrogate", lambda ratio, advantage, clip: ratio * advantage),
        "wrapped": lambda: put(losses, "clipped_surrogate", wrapped),
        "closure": lambda: put(losses, "clipped_surrogate", scaled(3.0)),
        "other closure": lambda: put(losses, "clipped_surrogate", scaled(4.0)),
        "method": lambda: put(heads.Categorical, "entropy", lambda self: jnp.zeros(self.logits.shape[:-1])),
        "partial": lambda: put(minibatch, "take", functools.partial(minibatch.take)),
        "its keyword": lambda: put(minibatch, "take", functools.partial(minibatch.take, index=1)),
        "its other keyword": lambda: put(minibatch, "take", functools.partial(minibatch.take, index=2)),
        "default": lambda: put(losses, "clipped_surrogate", lambda ratio, advantage, clip=1: ratio),
        "other default": lambda: put(losses, "clipped_surrogate", lambda ratio, advantage, clip=2: ratio),
        "function as default": lambda: put(losses, "clipped_surrogate", lambda ratio, advantage, clip=len: ratio),
        "other function as default": lambda: put(
            losses, "clipped_surrogate", lambda ratio, advantage, clip=scaled: ratio
        ),
        "keyword default": lambda: put(losses, "clipped_surrogate", lambda ratio, advantage, *, clip=1: ratio),
        "other keyword default": lambda: put(losses, "clipped_surrogate", lambda ratio, advantage, *, clip=2: ratio),
        "table": lambda: monkeypatch.setitem(torsos.ACTIVATIONS, "tanh", lambda x: x),
        "number in a table": lambda: monkeypatch.setitem(build._SMALLEST, "nature", 37),
        "array": lambda: put(minibatch, "NUMBERS", np.arange(3), raising=False),
        "other array": lambda: put(minibatch, "NUMBERS", np.arange(3) + 1, raising=False),
        "configuration": lambda: put(TrainConfig, "warm_up_rounds", property(lambda self: 1)),
        "model": lambda: put(four_rooms_mdp, "GOAL", (1, 1)),
        "somebody else's environment": lambda: put(CartPole, "step_env", lambda *_: None),
        "device": lambda: put(jax, "devices", lambda: [SimpleNamespace(platform="gpu", device_kind="H200")]),
        "version": lambda: put(traced.metadata, "version", lambda package: "99"),
        "constant": lambda: put(sys.modules["nextpolicy.algos.ppo"], "_MAX_LOG_RATIO", 10.0),
        "setting": lambda: jax.config.update("jax_default_matmul_precision", "highest"),
    }


def test_every_change_of_code_or_settings_is_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name = lambda: traced.fingerprint("a", "tree", ["f32()"])  # noqa: E731
    seen = {"nothing": name()}
    assert name() == seen["nothing"]
    for change, make in changes(monkeypatch).items():
        with monkeypatch.context():
            make()
            seen[change] = name()
            jax.config.update("jax_default_matmul_precision", None)
        monkeypatch.undo()
    seen["shapes"] = traced.fingerprint("a", "tree", ["f32(1,)"])
    seen["tree"] = traced.fingerprint("a", "other", ["f32()"])
    assert len(set(seen.values())) == len(seen), seen
    assert name() == seen["nothing"]


def test_another_process_finds_the_same_name() -> None:
    code = (
        "import nextpolicy.run.training; from nextpolicy.run import traced; "
        "print(traced.code_digest(), traced._text(frozenset('abcdefgh'), ''))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def train(job: Any) -> Any:
    program = job.program()
    state, _, _ = program.block(program.init(job.seeds), 2)
    state, metrics, _ = program.block(state, 1)
    return jax.device_get((state.agent.learner.params, metrics))


@pytest.mark.allow_rank_promotion
@pytest.mark.allow_key_reuse
def test_training_is_the_same_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = presets.build("probe/action-observation", algo="ppo", seeds=2, **SMALL)
    plain = train(make_job(config))
    monkeypatch.setenv("NEXTPOLICY_KEEP_TRACED", "1")
    before, code = jax.config.jax_compilation_cache_dir, traced.code_digest()
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        first = train(make_job(config))
        assert len(list((tmp_path / "traced").iterdir())) == 2
        monkeypatch.setattr(traced.Keeper, "lower", lambda *_: pytest.fail("traced again"))
        again = train(make_job(config.replace(seeds=(0, 1))))
        monkeypatch.setattr(population, "init_agent", lambda setup, key: None)
        monkeypatch.setattr(traced, "code_digest", lambda: code)
        with pytest.raises(RuntimeError, match="expected a program of this configuration, got one with a state"):
            train(make_job(config))
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    for a, b, c in zip(*(jax.tree.leaves(x) for x in (plain, first, again)), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_only_what_a_configuration_says_in_full_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = presets.build("probe/action-observation", **{**SMALL, "hidden": (8,)})
    assert make_job(config).by_name
    assert not make_job(config, observer=lambda setup, state: state.agent.round).by_name
    assert not make_job(config, actor=nn.Dense(2)).by_name
    assert not make_job(config, critic=heads.ValueHead()).by_name
    assert not make_job(config, criterion=StableValues()).by_name
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("NEXTPOLICY_KEEP_TRACED", "1")
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        assert traced.keeper("a") is None
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        assert traced.keeper("a") == traced.Keeper(tmp_path / "traced", "a")
        monkeypatch.setenv("NEXTPOLICY_KEEP_TRACED", "0")
        assert traced.keeper("a") is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
