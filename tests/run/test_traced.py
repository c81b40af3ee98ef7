"""A program is traced once: found again for the same configuration and code, and for no other."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nextpolicy import presets
from nextpolicy.core import losses, minibatch
from nextpolicy.nets import heads
from nextpolicy.run import traced
from nextpolicy.run.training import make_job

SMALL = {"num_envs": 4, "rollout_length": 8, "minibatch_size": 16, "hidden": (8,), "total_env_steps": 320}


def counted() -> tuple[Any, list[int]]:
    """A function in the form of a block of rounds, and a list that grows when it is traced."""
    traces: list[int] = []

    def block(scale: jax.Array, state: dict[str, jax.Array], rounds: jax.Array) -> tuple[Any, Any, None]:
        traces.append(1)
        return {"x": state["x"] * scale, "key": state["key"]}, {"total": jnp.sum(state["x"]) + rounds}, None

    return jax.jit(block), traces


def arguments() -> tuple[Any, ...]:
    return jnp.float32(2.0), {"x": jnp.arange(3.0), "key": jax.random.key(1)}, np.int32(5)


def kept(folder: Path, function: Any, arguments: tuple[Any, ...], about: str = "a") -> Any:
    return traced.Keeper(folder, about).begin(jax.devices()[0])(function, arguments)()


def lowered_and_run(folder: Path, about: str = "a") -> tuple[Any, int]:
    function, traces = counted()
    return kept(folder, function, arguments(), about)(*arguments()), len(traces)


def test_the_second_start_traces_nothing_and_gives_the_same(tmp_path: Path) -> None:
    for expected_traces in (1, 0, 0):
        (state, metrics, observed), traces = lowered_and_run(tmp_path)
        assert traces == expected_traces
        np.testing.assert_array_equal(state["x"], [0.0, 2.0, 4.0])
        assert jax.random.key_data(state["key"]).tolist() == jax.random.key_data(jax.random.key(1)).tolist()
        assert (float(metrics["total"]), observed) == (8.0, None)
    assert len(list(tmp_path.iterdir())) == 1
    assert lowered_and_run(tmp_path, "b")[1] == 1, "another configuration is another program"


def test_the_donated_argument_is_given_away_and_the_program_known_by_its_name(tmp_path: Path) -> None:
    names = lambda: [p.hlo_modules()[0].name for p in jax.devices()[0].client.live_executables()]  # noqa: E731
    for _ in range(2):
        function, _ = counted()
        compiled = given = None  # what is no longer held is no longer there to be counted
        before = names().count("jit_block")
        compiled, given = kept(tmp_path, function, arguments()), arguments()
        compiled(*given)
        assert names().count("jit_block") == before + 1
        assert given[1]["x"].is_deleted()
        assert not given[0].is_deleted()


def test_it_compiles_before_its_arguments_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered_and_run(tmp_path)
    started = threading.Event()
    compile_it = traced._compile
    monkeypatch.setattr(traced, "_compile", lambda *a: (started.set(), compile_it(*a))[1])
    lower = traced.Keeper(tmp_path, "a").begin(jax.devices()[0])
    assert started.wait(timeout=60)
    function, traces = counted()
    state, _, _ = lower(function, arguments())()(*arguments())
    np.testing.assert_array_equal(state["x"], [0.0, 2.0, 4.0])
    assert not traces


def test_a_program_that_does_not_compile_is_made_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered_and_run(tmp_path)

    def broken(*_: Any) -> Any:
        raise RuntimeError("not on this device")

    monkeypatch.setattr(traced, "_compile", broken)
    (state, _, _), traces = lowered_and_run(tmp_path)
    np.testing.assert_array_equal(state["x"], [0.0, 2.0, 4.0])
    assert traces == 1


@pytest.mark.parametrize("damage", [b"", b"not a program", None])
def test_a_damaged_file_is_written_anew(tmp_path: Path, damage: bytes | None) -> None:
    lowered_and_run(tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    (state, _, _), traces = lowered_and_run(tmp_path)
    assert traces == 1
    np.testing.assert_array_equal(state["x"], [0.0, 2.0, 4.0])
    assert lowered_and_run(tmp_path)[1] == 0


def test_a_program_for_other_shapes_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced, "fingerprint", lambda *_: "same")
    lowered_and_run(tmp_path)
    function, traces = counted()
    wide = (jnp.float32(2.0), {"x": jnp.arange(4.0), "key": jax.random.key(1)}, np.int32(5))
    state, _, _ = kept(tmp_path, function, wide)(*wide)
    assert len(traces) == 1
    assert state["x"].shape == (4,)
    exported = traced._export(function, wide)
    scale, state, rounds = wide
    assert traced._fits(exported, wide)
    assert not traced._fits(exported, ((scale, state["key"]), {"x": state["x"]}, rounds)), "other leaves given away"
    assert not traced._fits(exported, (np.int32(2), state, rounds))


def test_what_cannot_be_kept_runs_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert lowered_and_run(blocked / "folder")[1] == 1, "a folder that cannot be made"

    def broken(*_: Any, **__: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(jax.export, "export", broken)
    (state, _, _), _ = lowered_and_run(tmp_path / "fresh")
    np.testing.assert_array_equal(state["x"], [0.0, 2.0, 4.0])


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
        "constant": lambda: put(sys.modules["nextpolicy.train.update"], "_MAX_LOG_RATIO", 10.0),
        "setting": lambda: jax.config.update("jax_default_matmul_precision", "highest"),
    }


def test_every_change_of_code_or_settings_is_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name = lambda: traced.fingerprint("a")  # noqa: E731
    seen = {"nothing": name()}
    assert name() == seen["nothing"]
    for change, make in changes(monkeypatch).items():
        with monkeypatch.context():
            make()
            seen[change] = name()
            jax.config.update("jax_default_matmul_precision", None)
        monkeypatch.undo()
    seen["about"] = traced.fingerprint("b")
    assert len(set(seen.values())) == len(seen), seen
    assert name() == seen["nothing"]


def test_another_process_finds_the_same_name() -> None:
    code = (
        "import nextpolicy.run.training; from nextpolicy.run import traced; "
        "print(traced.code_digest(), traced._constant(frozenset('abcdefgh')))"
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
    return jax.device_get((state.agent.params, metrics))


@pytest.mark.allow_rank_promotion
@pytest.mark.allow_key_reuse
def test_training_is_the_same_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = presets.build("gymnax/CartPole-v1", algo="sv-dynamic", seeds=2, **SMALL)
    plain = train(make_job(config))
    monkeypatch.setenv("NEXTPOLICY_KEEP_TRACED", "1")
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        first = train(make_job(config))
        (file,) = (tmp_path / "traced").iterdir()
        taken: list[bool] = []
        fits = traced._fits
        monkeypatch.setattr(traced, "_fits", lambda *a: (taken.append(fits(*a)), taken[-1])[1])
        again = train(make_job(config.replace(seeds=(0, 1))))
        assert taken == [True]
        train(make_job(config.replace(seeds=(0, 1, 2))))
        assert len(list((tmp_path / "traced").iterdir())) == 2, "another number of members is another program"
        assert taken == [True]
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert file.exists()
    for a, b, c in zip(*(jax.tree.leaves(x) for x in (plain, first, again)), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_only_what_a_configuration_says_in_full_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = presets.build("four-rooms", **{**SMALL, "hidden": (8,)})
    assert make_job(config).by_name
    assert not make_job(config, observer=lambda setup, state: state.agent.round).by_name
    assert not make_job(config, actor=heads.CategoricalHead(4)).by_name
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
