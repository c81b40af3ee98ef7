"""Policies of a real run, written to a folder and used without this package."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

import nextpolicy
from nextpolicy.cli.main import main
from nextpolicy.config import ConfigError
from nextpolicy.export import numpy_policy
from nextpolicy.run import arrays
from nextpolicy.runfiles import BEST, EVALUATIONS
from run.helpers import SMALL

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
FILES = ["README.md", "load_policy.py", "policy.json", "policy.npz"]
# Acts on stored observations in a process that has the folder and NumPy.
ELSEWHERE = """
import sys
folder, obs = sys.argv[1:]
sys.path.insert(0, folder)
import numpy as np
from load_policy import load
policy = load(folder)
obs = np.load(obs)
np.savez(folder + ".npz", greedy=policy(obs), drawn=policy.sample(obs, np.random.default_rng(0)))
print(*{"jax", "flax", "nextpolicy"} & set(sys.modules))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> nextpolicy.Run:
    """Ten rounds of two members, and a best policy as if there had been evaluations."""
    pytest.importorskip("gymnax")
    fields: dict[str, Any] = {**SMALL, "block_rounds": 10, "seeds": 2, "learning_rate": 0.01, "normalise_obs": True}
    run = nextpolicy.train("gymnax/CartPole-v1", **fields, out=tmp_path_factory.mktemp("runs") / "run", quiet=True)
    best = run.snapshot("target", 1)
    (run.path / BEST).mkdir()
    best = best._replace(params=jax.tree.map(lambda x: 2.0 * x, best.params))
    arrays.save(run.path / BEST / "member-00001.npz", best, member=1, env_steps=192)
    rows = "env_steps,member,mean\n96,0,9.0\n96,1,2.0\n192,0,8.0\n192,1,3.0\n320,0,7.0\n320,1,1.0\n"
    (run.path / EVALUATIONS).write_text(rows)
    return run


def observations() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)


@pytest.mark.parametrize(("policy", "member"), [("target", 0), ("behaviour", 1), ("best", 1)])
def test_each_policy_of_a_run_is_the_one_that_is_written(
    run: nextpolicy.Run, tmp_path: Path, policy: str, member: int
) -> None:
    folder = run.export(tmp_path / "out", policy, member)
    loaded, obs = numpy_policy.load(folder), observations()
    own = run.policy(policy, member)
    np.testing.assert_array_equal(loaded(obs), own(obs))
    logits = own._networks.policy(own.snapshot)(obs).logits
    np.testing.assert_allclose(loaded.output(obs), logits, rtol=1e-5)
    for other in {("target", 0), ("target", 1), ("behaviour", 1), ("best", 1)} - {(policy, member)}:
        theirs = run.policy(*other)
        assert not np.allclose(theirs._networks.policy(theirs.snapshot)(obs).logits, logits, rtol=1e-5), other


def test_the_folder_works_with_numpy_alone(run: nextpolicy.Run, tmp_path: Path) -> None:
    folder = run.export(tmp_path / "new" / "out", member=1)
    assert sorted(file.name for file in folder.iterdir()) == FILES
    obs = observations()
    np.save(tmp_path / "obs.npy", obs)
    command = [sys.executable, "-W", "error", "-c", ELSEWHERE, str(folder), str(tmp_path / "obs.npy")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (result.stderr, result.stdout.strip()) == ("", "")
    done = np.load(f"{folder}.npz")
    np.testing.assert_array_equal(done["greedy"], run.policy("target", 1)(obs))
    assert set(done["drawn"].tolist()) == {0, 1}


def test_the_description_says_what_it_is_and_what_made_it(run: nextpolicy.Run, tmp_path: Path) -> None:
    folder = run.export(tmp_path / "out", "best", 1)
    found = json.loads((folder / "policy.json").read_text())
    assert found["made_by"] == {
        **{"nextpolicy": nextpolicy.__version__, "algo": "sv-dynamic", "sweep": {}, "seed": 1, "member": 1},
        **{"policy": "best", "env_steps": 192},
    }
    assert (found["format"], found["environment"]) == (1, "gymnax/CartPole-v1")
    assert found["observation"]["shape"] == [4]
    assert found["action"] == {"kind": "discrete", "n": 2, "start": 0, "dtype": "int32"}
    assert found["normaliser"]["clip"] == 10.0
    assert [layer.get("shape") for layer in found["network"]["layers"]] == [None, [4, 8], None, [8, 2]]
    target = json.loads((run.export(tmp_path / "target") / "policy.json").read_text())
    assert target["made_by"]["env_steps"] == 320
    words = (folder / "README.md").read_text()
    assert "The best policy of sv-dynamic, seed 1, after" in words
    assert "gymnax/CartPole-v1" in words


def test_the_command_writes_the_same(run: nextpolicy.Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("onnx")
    out = tmp_path / "out"
    assert main(["export", str(run.path), str(out), "--policy", "behaviour", "--member", "1", "--onnx"]) == 0
    assert capsys.readouterr().out == f"export: {out} ({', '.join([*FILES, 'policy.onnx'])})\n"
    same = run.export(tmp_path / "same", "behaviour", 1, onnx=True)
    for name in FILES[:3]:
        assert (out / name).read_bytes() == (same / name).read_bytes()
    ours, theirs = (np.load(folder / "policy.npz") for folder in (out, same))
    for name in ours.files:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_what_is_not_a_new_or_empty_folder_is_left_alone(run: nextpolicy.Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(
        ConfigError, match=r"^folder: expected a new or empty folder, got .*, which holds other files; "
    ):
        run.export(tmp_path)
    with pytest.raises(
        ConfigError, match=r"^folder: expected a new or empty folder, got .*, which is a file or inside one$"
    ):
        run.export(tmp_path / "notes.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    assert sorted(file.name for file in run.export(tmp_path / "empty").iterdir()) == FILES


def test_what_cannot_be_written_leaves_no_folder(
    run: nextpolicy.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"^policy: expected 'target', 'behaviour' or 'best', got 'critic'$"):
        run.export(tmp_path / "out", "critic")
    with pytest.raises(ConfigError, match=r"^member: expected .*, got 2$"):
        run.export(tmp_path / "out", member=2)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"^onnx: onnx is not installed; pip install -e '\.\[onnx\]'"):
        run.export(tmp_path / "out", onnx=True)
    assert not list(tmp_path.iterdir())


def test_somebodys_own_network_is_refused_in_one_line(run: nextpolicy.Run, tmp_path: Path) -> None:
    own = nextpolicy.Run(run._folder, lambda: dataclasses.replace(run._job, actor=nn.Dense(2)))
    with pytest.raises(ValueError, match=r"^export: .* got the actor Dense; serialise run\.policy.* with jax\.export$"):
        own.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_page_does_what_it_says(run: nextpolicy.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block, in order, in one program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "cartpole")
    batch = observations()
    scope: dict[str, Any] = {"run": run, "obs": batch[0], "batch": batch}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    loading = 'run = nextpolicy.load("runs/cartpole")\n'
    assert loading in blocks[0]
    blocks[0] = blocks[0].replace(loading, "")  # `run` is shorter
    if not all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))):
        blocks = [block for block in blocks if "onnx" not in block]
    for block in blocks:
        importlib.invalidate_caches()  # the first block writes the module that the second imports
        exec(compile(block, str(PAGE), "exec"), scope)
    del sys.modules["load_policy"]
    wanted = run.policy("target")(scope["batch"])
    np.testing.assert_array_equal(scope.get("action", wanted), wanted)  # of the block on ONNX
    np.testing.assert_array_equal(scope["actions"], wanted)
