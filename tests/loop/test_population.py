"""A population is its members: however they are mapped, cut into blocks or laid on devices."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from tests.compiling import FLAGS

from .helpers import CAPACITY, assert_close, assert_same, build, compiled_quickly, member, run, tiny, train

# The key checker loses track of keys that vmap moves through a scan; the unmapped program passes it.
pytestmark = pytest.mark.allow_key_reuse

MIXED: dict[str, Any] = {
    "algo": ("ppo", "sv-static", "sv-dynamic"),
    "seeds": (3, 8),
    "sweep": {"learning_rate": (1e-2, 3e-3)},
    "static_k": 4,
    "normalise_obs": True,
}
ROUNDS = 10


@pytest.fixture(scope="module")
def mixed() -> Any:
    """Twelve members, one after another, in one program."""
    return build(tiny(population="map", **MIXED))


@pytest.fixture(scope="module")
def result(mixed: Any) -> Any:
    return run(*mixed, [ROUNDS])


def test_members_are_algorithms_by_swept_values_by_seeds(mixed: Any) -> None:
    members = mixed[0].config.members()
    assert len(members) == 12
    assert [m.variant for m in members[:4]] == ["ppo[learning_rate=0.01]"] * 2 + ["ppo[learning_rate=0.003]"] * 2
    assert [m.seed for m in members[:4]] == [3, 8, 3, 8]


@pytest.mark.parametrize("index", [0, 7, 10])
def test_a_member_of_a_population_is_the_member_alone(result: Any, index: int) -> None:
    config = tiny(population="map", **MIXED)
    chosen = config.members()[index]
    alone = config.replace(algo=(chosen.algo,), seeds=(chosen.seed,), sweep={}, **dict(chosen.overrides))
    state, metrics = train(alone, [ROUNDS])
    assert_same(member(state, 0), member(result[0], index))
    assert_same(member(metrics, 0), member(result[1], index))


def test_side_by_side_is_one_after_another_to_rounding(result: Any) -> None:
    """Two rounds: rounding grows from there, and a sample or a gate may then fall to the other side."""
    with compiled_quickly():
        _, metrics = train(tiny(population="force-vmap", **MIXED), [ROUNDS])
    for name, values in metrics.items():
        np.testing.assert_allclose(values[:, :2], result[1][name][:, :2], rtol=2e-3, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(metrics["value_loss"].mean(), result[1]["value_loss"].mean(), rtol=0.05)


def test_blocks_do_not_change_the_result(mixed: Any, result: Any) -> None:
    for blocks in ([1] * ROUNDS, [3, 1, 4, 2]):
        state, metrics = run(*mixed, blocks)
        assert_same(state, result[0])
        assert_same(metrics, result[1])


def test_nothing_compiles_after_the_first_block(mixed: Any, caplog: pytest.LogCaptureFixture) -> None:
    job, program = mixed
    state, _, _ = program.block(program.init(job.seeds), 2)
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
        for rounds in (1, 3, CAPACITY, 5):
            state, _, _ = program.block(state, rounds)
    compiled = re.findall(r"(?:Compiling|Finished XLA compilation of) (?:jit\()?(\w+)", caplog.text)
    assert "block" not in compiled, compiled
    assert int(state.agent.round[0]) == 2 + 1 + 3 + CAPACITY + 5


def test_the_compilation_counter_counts(caplog: pytest.LogCaptureFixture) -> None:
    """The control of the test above: a compilation is seen in the log."""
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):

        def block(x: jax.Array) -> jax.Array:
            return x + 41.5

        jax.jit(block)(np.ones(3, np.float32))
    assert "block" in re.findall(r"(?:Compiling|Finished XLA compilation of) (?:jit\()?(\w+)", caplog.text)


def test_device_memory_does_not_grow(mixed: Any) -> None:
    job, program = mixed
    state = program.init(job.seeds)
    sizes = []
    for _ in range(4):
        state, metrics, _ = program.block(state, 5)
        jax.block_until_ready((state, metrics))
        # Not kept in a variable: the list would keep alive what it lists.
        sizes.append(tuple(map(sum, zip(*((1, x.nbytes) for x in jax.live_arrays())))))
    assert sizes[1] == sizes[2] == sizes[3], sizes


def test_buffers_are_donated(mixed: Any) -> None:
    job, program = mixed
    state = program.init(job.seeds)
    first = jax.tree.leaves(state.agent.learner.params)[0]
    program.block(state, 1)
    assert first.is_deleted()


# --- several devices, in processes of their own ---

ON_EIGHT_DEVICES = """
import contextlib, io, json, sys, textwrap, traceback
import jax, numpy as np
sys.path.insert(0, sys.argv[1])
from loop.helpers import *
from nextpolicy.loop.population import build_program, layout
assert len(jax.devices()) == 8
def on(devices, config, blocks):
    job = make_job(config)
    some = jax.devices()[:devices]
    return run(job, build_program(job.setup, job.env, job.hypers, capacity=CAPACITY, devices=some), blocks)
answers = {}
for name, body in json.load(sys.stdin).items():
    out, error = io.StringIO(), ""
    with contextlib.redirect_stdout(out):
        try:
            exec(textwrap.dedent(body), dict(globals()))
        except Exception:
            error = traceback.format_exc()
    answers[name] = out.getvalue(), error
print(json.dumps(answers))
"""
SCRIPTS = {
    "members": """
        config = tiny(algo=("ppo", "sv-dynamic"), seeds=8, normalise_obs=True)
        print(dict(layout(16, 4, jax.devices()).shape))
        (state_1, metrics_1), (state_8, metrics_8) = (on(n, config, [3, 4]) for n in (1, 8))
        for name in metrics_1:
            early = [m[name][:, :3] for m in (metrics_1, metrics_8)]
            np.testing.assert_allclose(*early, rtol=1e-4, atol=1e-5, err_msg=name)
        backwards = config.replace(seeds=tuple(range(7, -1, -1)), algo=("sv-dynamic", "ppo"))
        state_b, metrics_b = on(8, backwards, [3, 4])
        flip = lambda tree: jax.tree.map(lambda x: x[::-1], tree)
        assert_same(state_8, flip(state_b))
        assert_same(metrics_8, flip(metrics_b))
        """,
    "environments": """
        fields = dict(seeds=2, num_envs=8, minibatch_size=32, epochs=4, gamma=0.9, normalise_obs=True, algo=("ppo",))
        config = tiny(env="probe/discount", value_clip=np.inf, learning_rate_final=1e-2, **fields)
        print(dict(layout(2, 8, jax.devices()).shape))
        (state_1, m1), (state_8, m8) = (on(n, config, [20, 20]) for n in (1, 8))
        for state, m in ((state_1, m1), (state_8, m8)):
            assert (m["episodes"] == 32).all(), m["episodes"]          # 8 environments x 8 steps, episodes of 2
            np.testing.assert_allclose(m["episode_return"], 1.0)
            np.testing.assert_allclose(state.agent.learner.obs_stats.samples, 8 * 8 * 40)
            np.testing.assert_allclose(state.agent.learner.obs_stats.mean, 0.5, rtol=1e-6)
            print("diff", m["diff"][:, -1].max())
        assert np.isfinite(m8["grad_norm"]).all()
        for name in ("diff", "diff_scale", "explained_variance"):     # before the first gradient step: the same data
            np.testing.assert_allclose(m1[name][:, 0], m8[name][:, 0], rtol=1e-4, err_msg=name)
        """,
    "gradients": """
        fields = dict(seeds=2, num_envs=8, minibatch_size=64, epochs=1, gamma=0.9, algo=("ppo",), max_grad_norm=np.inf)
        job = make_job(tiny(env="probe/discount", **fields))
        critics = []
        for n in (1, 8):
            program = build_program(job.setup, job.env, job.hypers, capacity=CAPACITY, devices=jax.devices()[:n])
            state, _, _ = program.block(program.init(job.seeds), 10)
            for leaf in jax.tree.leaves((state.agent.learner.params, state.agent.learner.opt_state)):
                copies = {}
                for shard in leaf.addressable_shards:
                    copies.setdefault(str(shard.index), []).append(np.asarray(shard.data))
                assert len(copies) == (2 if n == 8 else 1)
                assert all((c == group[0]).all() for group in copies.values() for c in group)
            critics.append(fetch(state.agent.learner.params["critic"]))
        assert_close(*critics, rtol=1e-3, atol=1e-4)
        """,
    "quantile": """
        from nextpolicy.core.shards import Shards
        quantile = jax.pmap(lambda x: Shards("devices", 8).quantile(x, 0.95), axis_name="devices")
        x = np.random.default_rng(0).uniform(size=(8, 50)).astype(np.float32)
        expected = np.quantile(x, 0.95, method="inverted_cdf")
        np.testing.assert_allclose(quantile(x), [expected] * 8, atol=2e-6)
        x[3, 7] = np.nan
        assert np.isnan(quantile(x)).all()
        """,
}


@pytest.fixture(scope="module")
def on_eight_devices() -> dict[str, tuple[str, str]]:
    """(what it printed, how it failed) of each script, all in one process: importing JAX takes seconds.

    What is compared bit for bit there comes out of one program, so few optimisations do.
    """
    flags = f"--xla_force_host_platform_device_count=8 {FLAGS}"
    done = subprocess.run(
        [sys.executable, "-c", ON_EIGHT_DEVICES, str(Path(__file__).parents[1])],
        env=environment(XLA_FLAGS=flags, JAX_DISABLE_MOST_OPTIMIZATIONS="1"),
        input=json.dumps(SCRIPTS),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def environment(**variables: str) -> dict[str, str]:
    cache = {"JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir or ""}
    return {**os.environ, "JAX_PLATFORMS": "cpu", **cache, **variables}


def test_members_on_eight_devices_are_members_on_one(on_eight_devices: dict[str, tuple[str, str]]) -> None:
    """On which of the eight a member lies does not matter to the last bit. Against one device it is rounding: XLA
    compiles a program for several devices through other passes, and fuses other sums.
    """
    out, error = on_eight_devices["members"]
    assert not error, error
    assert "{'members': 8, 'envs': 1}" in out


def test_environments_are_shared_out_where_members_are_few(on_eight_devices: dict[str, tuple[str, str]]) -> None:
    """Two members on eight devices: four devices each. Other minibatches, the same statistics, the same lesson."""
    out, error = on_eight_devices["environments"]
    assert not error, error
    assert "{'members': 2, 'envs': 4}" in out
    assert all(float(x) < 0.05 for x in re.findall(r"diff (\S+)", out)), out


def test_gradients_are_averaged_over_the_devices_of_a_member(on_eight_devices: dict[str, tuple[str, str]]) -> None:
    """With one gradient step per round a split batch is the whole batch; and every device then holds the same agent."""
    _, error = on_eight_devices["gradients"]
    assert not error, error


def test_a_quantile_over_eight_devices_is_that_of_all_samples(on_eight_devices: dict[str, tuple[str, str]]) -> None:
    _, error = on_eight_devices["quantile"]
    assert not error, error


def test_two_processes_write_one_run(tmp_path: Path) -> None:
    """Two processes, two members each, joined by jax.distributed, against one process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "nextpolicy", "train", "probe/action-observation", "--quiet"]
    fields = {"algo": "ppo,sv-static", "seeds": 2, "num_envs": 4, "rollout_length": 8, "minibatch_size": 16}
    fields |= {"total_env_steps": 320, "hidden": "8", "block_rounds": 4}
    command += [word for k, v in fields.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    joint_command = [*command, "--out", str(tmp_path / "joint"), "--coordinator", f"127.0.0.1:{port}"]
    joint_command += ["--num-processes", "2", "--process-id"]
    few = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # what is compared is how the work was shared out
    pipes = {
        "env": environment(**few, XLA_FLAGS=FLAGS),
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }
    with (
        subprocess.Popen([*joint_command, "0"], **pipes) as first,
        subprocess.Popen([*joint_command, "1"], **pipes) as second,
    ):
        try:
            outputs = [p.communicate(timeout=200)[0] for p in (first, second)]
        finally:
            first.kill()
            second.kill()
    assert [first.returncode, second.returncode] == [0, 0], outputs
    two_devices = environment(**few, XLA_FLAGS=f"{FLAGS} --xla_force_host_platform_device_count=2")
    subprocess.run([*command, "--out", str(tmp_path / "alone")], env=two_devices, check=True, timeout=200)
    import nextpolicy

    together, alone = (nextpolicy.load(tmp_path / name) for name in ("joint", "alone"))
    assert together.status["state"] == "finished"
    drop = ["steps_per_second"]
    pd.testing.assert_frame_equal(together.metrics.drop(columns=drop), alone.metrics.drop(columns=drop))
    assert_close(together.snapshot(member=3), alone.snapshot(member=3), rtol=0, atol=0)
