"""The command line: what it refuses, in one line and with exit code 2, and what its commands do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

import nextpolicy
from nextpolicy.cli import train
from nextpolicy.cli.main import main
from nextpolicy.config import FIELDS
from nextpolicy.run import processes
from run.helpers import SMALL, contents, environment, options

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]

SMALL_OPTIONS = options(**SMALL)


@pytest.fixture(scope="module", autouse=True)
def _devices_as_they_are() -> Iterator[None]:
    """The commands run inside this process, whose devices other tests use too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "use_all_cores", lambda: None)
        yield


def complaint(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    """The one line that a refused command prints."""
    capsys.readouterr()
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nextpolicy: ")
    assert captured.err.count("\n") == 1, captured.err
    assert "Traceback" not in captured.err
    return captured.err


REFUSED: list[tuple[list[str], list[str]]] = [
    # environments
    (["train", "gymnax/CartPol-v1"], ["gymnax/CartPol-v1", "nearest: gymnax/CartPole-v1"]),
    (["train", "cartpole-v1"], ["gymnax/CartPole-v1"]),
    (["train", "four-room"], ["four-rooms"]),
    (["train", "four-rooms", "--env-options", "nois=fail"], ["nois", "noise"]),
    (
        ["train", "probe/endless", "--env-options", "time_limit=0"],
        ["probe/endless time_limit: expected a whole number of at least 1, got 0"],
    ),
    (["train"], ["required: env"]),
    # options and fields
    (["train", "four-rooms", "--learning-rat", "1"], ["--learning-rat", "'--learning-rate'"]),
    (["train", "four-rooms", "--num_envs", "4"], ["--num_envs", "'--num-envs'"]),
    (["train", "four-rooms", "stray"], ["unknown argument 'stray'"]),
    (["suite", "run", "smoke", "--seed", "3"], ["unknown option '--seed'", "'--seeds'"]),
    (["train", "four-rooms", "--learning-rate", "fast"], ["learning_rate: expected a number, got 'fast'"]),
    (["train", "four-rooms", "--num-envs", "2.5"], ["num_envs: expected a whole number, got '2.5'"]),
    (["train", "four-rooms", "--num-envs", "inf"], ["num_envs: expected a whole number, got 'inf'"]),
    (["train", "four-rooms", "--gamma", "1"], ["gamma: expected a number in [0, 1), got 1"]),
    (["train", "four-rooms", "--gamma", "nan"], ["gamma: expected", "got nan"]),
    (["train", "four-rooms", "--layer-norm", "perhaps"], ["layer_norm: expected true or false, got 'perhaps'"]),
    (["train", "four-rooms", "--torso", "mpl"], ["torso: expected", "got 'mpl'", "did you mean 'mlp'"]),
    (["train", "four-rooms", "--algo", "sv-dynamik"], ["algo: expected", "got 'sv-dynamik'", "'sv-dynamic'"]),
    (["train", "four-rooms", "--preset", "papper"], ["preset: expected", "got 'papper'", "'paper'"]),
    (["train", "gymnax/CartPole-v1", "--preset", "paper"], ["the paper does not cover"]),
    (["train", "four-rooms", "--seeds", "0"], ["seeds: expected", "got 0"]),
    (["train", "four-rooms", "--seeds", "1,1"], ["got a repeated value"]),
    (["train", "four-rooms", "--seeds=-1,2"], ["seeds: expected", "got (-1, 2)"]),
    (["train", "four-rooms", "--seeds", "5000000000,1"], ["2^32"]),
    (["train", "four-rooms", "--hidden", "0"], ["hidden: expected", "got (0,)"]),
    (
        ["train", "four-rooms", "--sweep", "hidden=8,16"],
        ["sweep: expected fields that members may differ in", "got 'hidden'"],
    ),
    (["train", "four-rooms", "--sweep", "lamda=0.9"], ["unknown field 'lamda'", "'lam'"]),
    (["train", "four-rooms", "--sweep", "lam"], ["sweep"]),
    (["train", "four-rooms", "--sweep", "lam=.9", "--sweep", "lam=.8"], ["lam: expected it once, got it 2 times"]),
    (["train", "four-rooms", "--sweep", "gamma=.9", "--sweep", "lamda=.8"], ["unknown field 'lamda'", "'lam'"]),
    (["train", "four-rooms", "--sweep", "lamda=.8", "--sweep", "gamma=.9"], ["unknown field 'lamda'", "'lam'"]),
    (["train", "four-rooms", "--sweep", "lam=0.9,1.5"], ["lam: expected", "got 1.5"]),
    (["train", "four-rooms", "--devices", "99"], ["devices: expected at most", "got 99"]),
    (["train", "four-rooms", "--coordinator", "x:1"], ["--num-processes and --process-id"]),
    # settings that do not go together
    (
        ["train", "four-rooms", "--minibatch-size", "300"],
        ["minibatch_size: expected a divisor of the batch size, num_envs * rollout_length = 1024, got 300"],
    ),
    (["train", "four-rooms", "--k-min", "40"], ["k_min: expected at most k_max, 33, got 40"]),
    (["train", "four-rooms", "--rho-min", "9"], ["rho_min: expected at most rho_max, 5, got 9"]),
    (
        ["train", "four-rooms", "--total-env-steps", "1000"],
        ["total_env_steps: expected at least one round", "got 1000"],
    ),
    (
        ["train", "probe/action-continuous", "--policy", "categorical"],
        [
            "policy: expected 'gaussian' or 'squashed' for probe/action-continuous, "
            "whose actions are continuous, got 'categorical'"
        ],
    ),
    (["train", "probe/action", "--policy", "squashed"], ["policy: expected 'categorical' for probe/action,"]),
    (
        ["train", "probe/action-continuous", "--algo", "sac", "--policy", "gaussian"],
        ["policy: expected 'auto' for sac, which has only one policy, got 'gaussian'"],
    ),
    (
        ["train", "probe/action-continuous", "--policy", "squashed", "--log-std-init", "2"],
        ["log_std_init: expected more than -5 and less than 2 for policy=squashed, got 2"],
    ),
    (["train", "probe/action", "--policy", "gaussian"], ["policy: expected 'categorical'"]),
    (["train", "probe/action", "--algo", "sv-dynamic", "--criterion", "oracle"], ["criterion: expected oracle only"]),
    (["train", "probe/action", "--criterion", "held-out"], ["held_out: expected a fraction above 0"]),
    (["train", "probe/action", "--held-out", "0.001"], ["held_out: expected 0, or at least one of the"]),
    (["train", "probe/action", "--criterion", "any-signal", "--sweep", "signal=oracle"], ["expected oracle only"]),
    (["train", "probe/action", "--evaluate-episodes", "4"], ["--evaluate-episodes: expected --evaluate-every"]),
    (["train", "probe/action", "--torso", "nature"], ["torso: expected images", "got 'nature'"]),
    # other commands
    (["trian", "four-rooms"], ["unknown command 'trian'", "'train'"]),
    (["frobnicate"], ["expected one of train, resume"]),
    (["help", "trian"], ["unknown command 'trian'", "'train'"]),
    # numbers without end
    (
        ["train", "four-rooms", "--block-rounds", "1e18"],
        ["block_rounds: expected", "got 1000000000000000000", "at most 2147483647"],
    ),
    (
        ["train", "four-rooms", "--total-env-steps", "1e300"],
        ["at most 1000000000000000, got 1000"],
    ),
    (["train", "four-rooms", "--total-env-steps", "1e15"], ["expected at most 99999999 rounds of 1024 steps"]),
    (["train", "four-rooms", "--seeds", "983505767519"], ["seeds: expected", "got 983505767519", "at most 10000"]),
    (
        ["train", "four-rooms", "--seeds", "4000", "--sweep", "lam=0.9,0.95,0.99"],
        ["members, got 12000", "at most 10000"],
    ),
    (
        ["train", "four-rooms", "--num-envs", "1e6", "--rollout-length", "1e6"],
        ["2147483647 samples, got 1000000000000"],
    ),
    (["train", "four-rooms", "--hidden", "1000000000"], ["got (1000000000,)", "at most 100000"]),
    (
        ["train", "four-rooms", "--entropy-coef", "nan"],
        ["entropy_coef: expected a number of at least -1000000", "got nan"],
    ),
    (["train", "four-rooms", "--log-std-init", "nan"], ["log_std_init: expected", "got nan"]),
    (["train", "four-rooms", "--value-clip", "1e300"], ["got 1e+300", "or inf"]),
    (["train", "four-rooms", "--env-options", "x=nan"], ["env_options: expected text, finite numbers", "got nan"]),
    (["study", "theory", "--cases", "1e9"], ["--cases"]),
    (["study", "theory", "--seed=-1"], ["seed: expected", "got -1"]),
    (["study", "theory", "--samples", "nan"], ["samples: expected", "got nan"]),
    (
        ["study", "four-rooms", "--rounds", "1000000000000"],
        ["rounds: expected", "2147483647, got 1000000000000"],
    ),
    (
        ["bench", "four-rooms", "--members", "983505767519"],
        ["members: expected", "at most 10000", "got '983505767519'"],
    ),
    (
        ["bench", "four-rooms", "--set", "env=x"],
        ["set: expected a field that contenders share, got env; use the work instead"],
    ),
    (["bench", "four-rooms", "--repeats", "1000000000"], ["repeats: expected", "got 1000000000"]),
    (["suite", "run", "smoke", "--seeds", "1000000000"], ["seeds: expected", "got 1000000000", "at most 10000"]),
    # names of other libraries
    (["train", "four-rooms", "--lr", "1"], ["unknown option '--lr'; did you mean '--learning-rate'?"]),
    (["train", "four-rooms", "--n_envs", "1"], ["did you mean '--num-envs'?"]),
    (
        ["train", "four-rooms", "--num-minibatches", "4"],
        ["did you mean '--minibatch-size'?", "Samples per gradient step"],
    ),
    (["train", "four-rooms", "--seed", "4"], ["did you mean '--seeds'?"]),
    (["train", "four-rooms", "--env-id", "x"], ["did you mean 'env'?"]),
    (["study", "four-rooms", "--ent-coef", "1"], ["did you mean '--entropy-coef'?"]),
    (["bench", "four-rooms", "--set", "lr=1"], ["did you mean 'learning_rate'?"]),
    # a population that would hang
    (
        ["train", "four-rooms", "--population", "vmap"],
        ["population: expected 'auto' or 'map' on a CPU, got 'vmap'", "deadlock", "'force-vmap'"],
    ),
    (["resume", "no/such/run"], ["expected a run folder, got no/such/run"]),
    (["eval", "no/such/run"], ["expected a run folder"]),
    (["export", "no/such/run", "out"], ["expected a run folder"]),
    (["export", "no/such/run"], ["required: folder"]),
    (["envs", "gymnas"], ["backend: expected one of 'four-rooms', 'gymnax'", "got 'gymnas'"]),
    (["study", "four-room"], ["'four-rooms'"]),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_refused(
    arguments: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    said = complaint(capsys, *arguments)
    for word in words:
        assert word in said
    assert list(tmp_path.iterdir()) == [], "a refused command leaves nothing behind"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "four-rooms", "--quiet", "--out", str(out), *SMALL_OPTIONS]) == 0
    return out


def test_train_makes_a_run(trained: Path) -> None:
    status = json.loads((trained / "status.json").read_text())
    assert status["state"] == "finished"
    assert status["rounds_done"] == status["rounds"] == 10
    assert status["env_steps"] == 320
    config = json.loads((trained / "config.json").read_text())
    assert config["env"] == "four-rooms"
    assert config["num_envs"] == 4
    assert {"nextpolicy", "versions", "device", "matmul_precision", "x64"} <= set(config["about"])


def test_a_folder_that_holds_another_run_is_refused(trained: Path, capsys: pytest.CaptureFixture) -> None:
    before = contents(trained)
    said = complaint(capsys, "train", "probe/action", "--out", str(trained), *SMALL_OPTIONS)
    assert "holds another run" in said
    assert "nothing was written" in said
    assert contents(trained) == before


def test_a_folder_with_other_files_or_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "holds other files" in complaint(capsys, "train", "four-rooms", "--out", str(tmp_path), *SMALL_OPTIONS)
    said = complaint(capsys, "train", "four-rooms", "--out", str(tmp_path / "notes.txt"), *SMALL_OPTIONS)
    assert "is a file" in said
    assert contents(tmp_path) == {"notes.txt": b"mine"}


def test_an_empty_folder_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["train", "four-rooms", "--quiet", "--out", str(tmp_path), *SMALL_OPTIONS]) == 0
    assert "score" in capsys.readouterr().out


def test_a_run_that_meets_nan_stops_and_keeps_its_last_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "run"
    said = complaint(capsys, "train", "probe/nan", "--out", str(out), "--quiet", *SMALL_OPTIONS)
    assert "not finite in round 8 of member 0 (sv-dynamic, seed 0)" in said
    status = json.loads((out / "status.json").read_text())
    assert status["state"] == "failed"
    assert "not finite in round 8" in status["reason"]
    assert status["rounds_done"] == 8
    run = nextpolicy.load(out)
    assert len(run.metrics) == 8
    assert np.isfinite(run.metrics["value_loss"]).all()
    assert all(np.isfinite(x).all() for x in map(np.asarray, jax.tree.leaves(run.snapshot())))
    # Resumed, it comes to the same end: there is no other.
    assert "not finite in round 8" in complaint(capsys, "resume", str(out), "--quiet")


def test_resume_of_a_finished_run_prints_its_scores(trained: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["resume", str(trained)]) == 0
    assert f"run: {trained}" in capsys.readouterr().out


def test_a_run_folder_of_another_version_says_so(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config = json.loads((trained / "config.json").read_text())
    for i, text in enumerate((json.dumps({**config, "new_field": 1}), "not json", "[]", b"\xff".decode("latin1"))):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "config.json").write_text(text)
        said = complaint(capsys, "eval", str(folder))
        assert "new_field" in said if i == 0 else "config.json" in said


def test_eval(trained: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["eval", str(trained), "--episodes", "4", "--num-envs", "2", "--policy", "behaviour"]) == 0
    out = capsys.readouterr().out
    assert "behaviour" in out
    assert out.split("\n")[1].split()[4] == "4"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "worst"], "policy: expected 'target', 'behaviour' or 'best', got 'worst'"),
        (["--episodes", "0"], "episodes: expected a whole number of at least 1"),
        (["--episodes", "5", "--num-envs", "2"], "episodes: expected a multiple of num_envs, 2, got 5"),
        (["--num-envs", "-1"], "num_envs: expected a whole number of at least 1"),
        (["--episodes", "many"], "invalid int value"),
        (["--video", "film.avi"], "expected a file name that ends in .gif"),
        (["--gredy"], "'--greedy'"),
        (
            ["--seed", "99999999999999999999999"],
            "seed: expected a whole number of at least 0",
        ),
        (["--seed=-1"], "seed: expected a whole number of at least 0 and at most 4294967295, got -1"),
        (["--episodes", "1000000000000"], "at most 1000000, got 1000000000000"),
        (["--num-envs", "9" * 30, "--episodes", "9" * 30], "expected a whole number of at least 1 and at most 1000000"),
    ],
)
def test_eval_refuses(trained: Path, capsys: pytest.CaptureFixture, arguments: list[str], words: str) -> None:
    before = contents(trained)
    assert words in complaint(capsys, "eval", str(trained), *arguments)
    assert contents(trained) == before


def test_video(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    film = tmp_path / "film.gif"
    assert main(["eval", str(trained), "--episodes", "1", "--video", str(film)]) == 0
    image: Any = Image.open(film)
    assert image.format == "GIF"
    assert image.size == (208, 208)
    assert 1 < image.n_frames <= 500
    image.close()
    before = film.read_bytes()
    assert "expected a new file" in complaint(capsys, "eval", str(trained), "--video", str(film))
    assert film.read_bytes() == before
    other = str(tmp_path / "other.gif")  # a wrong member is noticed before any episode is played
    said = complaint(capsys, "eval", str(trained), "--video", other, "--member", "99")
    assert "member: expected a whole number of at least 0 and at most" in said


def test_envs(capsys: pytest.CaptureFixture) -> None:
    assert main(["envs", "probe"]) == 0
    listed = capsys.readouterr().out.split()
    assert "probe/endless" in listed
    assert all(name.startswith("probe/") for name in listed)
    assert main(["envs"]) == 0
    everything = capsys.readouterr().out.split("\n")
    assert {"four-rooms", "probe/nan"} <= set(everything)


def help_text(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert end.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_explains_every_field(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    text = help_text(capsys, "train", "--help-all")
    for name, info in FIELDS.items():
        assert info.help.endswith(".")
        assert " ".join(info.help.split()) in text, name
        assert name == "env" or f"--{name.replace('_', '-')} " in text
    assert "Takes one of auto, mlp, small-cnn, nature, impala. Default auto." in text
    assert "Default 64,64." in text
    assert "Initial learning rate of Adam. Takes a number. Default 0.001." in text  # the preset's
    assert "or several seeds. Takes a number of seeds or several seeds. Default 1." in text
    assert "Default false." in text
    groups = ("environment:", "networks:", "algorithm ppo:", "every criterion:", "training:")
    places = [text.index(f" {group} --") for group in groups]
    assert text.index("--signal ") < places[-1]  # the fields of all criteria stand before those of the run
    assert places == sorted(places)
    assert places[3] < text.index("--delta-v") < places[4]


def test_short_help_has_an_example_and_the_common_fields(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    text = help_text(capsys, "train", "--help")
    assert "example: nextpolicy train gymnax/CartPole-v1 --algo ppo,sv-dynamic --seeds 4" in text
    assert all(f"--{name.replace('_', '-')} " in text for name in train.COMMON)
    assert "--adam-eps" not in text
    assert f"--help-all` also lists {len(FIELDS) - 1 - len(train.COMMON)} other fields" in text
    assert len(text) < len(help_text(capsys, "train", "--help-all")) / 2


def test_help_and_version(capsys: pytest.CaptureFixture) -> None:
    for arguments in ([], ["--help"]):
        assert main(arguments) == 0
        assert all(command in capsys.readouterr().out for command in ("train",))
    assert main(["--version"]) == 0
    assert nextpolicy.__version__ in capsys.readouterr().out


def test_traceback_on_request(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXTPOLICY_TRACEBACK", "1")
    with pytest.raises(ValueError, match="got 'nowhere'"):
        main(["train", "nowhere"])


def test_a_cpu_gives_one_device_per_core_unless_it_is_in_use() -> None:
    code = (
        "from nextpolicy.run.processes import use_all_cores; import jax; {}use_all_cores(); print(jax.device_count())"
    )
    for first, expected in (("", len(os.sched_getaffinity(0))), ("jax.devices(); ", 1)):
        done = subprocess.run(
            [sys.executable, "-c", code.format(first)],
            capture_output=True,
            text=True,
            check=True,
            env=environment(XLA_FLAGS=""),
        )
        assert int(done.stdout) == expected


def test_what_cannot_be_filmed_is_said_before_evaluating(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = tmp_path / "probe"
    assert main(["train", "probe/constant", "--out", str(probe), "--quiet", *options(**SMALL)]) == 0
    capsys.readouterr()
    monkeypatch.setattr(nextpolicy.Run, "evaluate", lambda *_, **__: pytest.fail("it was evaluated"))
    said = complaint(capsys, "eval", str(probe), "--video", str(tmp_path / "film.gif"))
    assert "video: expected an environment that can render, got probe/constant, which cannot" in said
    assert not (tmp_path / "film.gif").exists()


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    line = f"{sys.executable} -m nextpolicy suite list | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # 0 if all was written before the reader had gone


@pytest.mark.parametrize(
    "words", [["bench", "probe/constant", "--contenders=--"], ["bench", "gym/CartPole-v1", "--until-return=--"]]
)
def test_two_dashes_are_no_value(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """argparse drops them, and the option would be an empty list."""
    assert main(words) == 2
    option = words[-1].partition("=")[0]
    assert capsys.readouterr().err == f"nextpolicy: {option}: expected a value, got '--'\n"
