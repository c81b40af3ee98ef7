"""Try the package without extras, and with each extra alone: `python tools/extras.py --python python3.12 [EXTRA ...]`.

In new virtual environments, with the versions of constraints.txt. Without extras, training, report and export must
work, and what needs an extra must be refused in one line that names it. With an extra alone, what needs it must work.
Prints a line for each; the exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIELDS = {"num-envs": 4, "rollout-length": 8, "minibatch-size": 32, "total-env-steps": 64, "devices": 1, "hidden": 8}
TINY = ["--quiet", *(word for name, value in FIELDS.items() for word in (f"--{name}", str(value)))]
SUITE = """environments = ["four-rooms"]
preset = "default"
seeds = 1
evaluate_episodes = 2
fields = { total_env_steps = 64, num_envs = 4, rollout_length = 8, minibatch_size = 32, hidden = [8], devices = 1 }
"""
# Words of a command that needs the extra. RUN is a finished run, OUT and PAGE are for results, SUITE is a suite's file.
NEEDS = {
    "gymnax": ["train", "gymnax/CartPole-v1", *TINY, "--out", "OUT"],
    "brax": ["train", "brax/inverted_pendulum", *TINY, "--out", "OUT"],
    "playground": ["train", "playground/CartpoleBalance", *TINY, "--out", "OUT"],
    "craftax": ["train", "craftax/Craftax-Classic-Symbolic-v1", *TINY, "--out", "OUT"],
    "navix": ["train", "navix/Navix-Empty-5x5-v0", *TINY, "--out", "OUT"],
    "gymnasium": ["train", "gym/CartPole-v1", *TINY, "--out", "OUT"],
    "atari": ["train", "atari/Pong", *TINY, "--torso", "mlp", "--out", "OUT"],
    "onnx": ["export", "RUN", "OUT", "--onnx"],
    "ray": ["suite", "run", "SUITE", "--engine", "ray", "--out", "OUT", "--quiet"],
    "tensorboard": ["train", "four-rooms", *TINY, "--tensorboard", "true", "--out", "OUT"],
    "wandb": ["train", "four-rooms", *TINY, "--wandb", "project", "--out", "OUT"],
}
# Commands that need no extra.
PLAIN = (
    ["train", "four-rooms", *TINY, "--out", "RUN"],
    ["train", "probe/action-continuous", *TINY, "--algo", "sac,sv-sac", "--out", "OUT"],
    ["eval", "RUN", "--episodes", "2"],
    ["report", "RUN", "--out", "PAGE"],
    ["export", "RUN", "OUT"],
    ["suite", "run", "SUITE", "--out", "OUT", "--quiet"],
)


def environment(python: str, folder: Path, what: str, beside: Path | None = None) -> Path:
    """A virtual environment with `what` installed; packages of the environment `beside` are seen, not installed."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    if beside is not None:
        (site,) = folder.glob("lib/python*/site-packages")
        (other,) = beside.glob("lib/python*/site-packages")
        (site / "beside.pth").write_text(f"{other}\n")
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", what], check=True, stderr=subprocess.DEVNULL)
    return folder


def tried(venv: Path, words: list[str], work: Path, name: str) -> tuple[int, str]:
    """Exit code of a command and what it said on stderr."""
    places = {"RUN": work / "run", "SUITE": work / "suite.toml", "OUT": work / name, "PAGE": work / f"{name}.html"}
    words = [str(places.get(word, word)) for word in words]
    offline = {**os.environ, "WANDB_MODE": "offline", "JAX_PLATFORMS": "cpu", "RAY_AUTH_MODE": "disabled"}
    command = [venv / "bin" / "python", "-m", "nextpolicy", *words]
    done = subprocess.run(command, cwd=work, env=offline, capture_output=True, text=True, timeout=900, check=False)
    return done.returncode, done.stderr.strip()


def without(venv: Path, work: Path, extras: list[str]) -> list[str]:
    """What is wrong in an environment without extras."""
    wrong = []
    for number, words in enumerate(PLAIN):
        code, said = tried(venv, words, work, f"plain-{number}")
        if code:
            wrong.append(f"{' '.join(words[:2])}: {said[-300:]}")
    for extra in extras:
        code, said = tried(venv, NEEDS[extra], work, f"without-{extra}")
        if code != 2 or len(said.splitlines()) != 1 or f".[{extra}]" not in said:
            wrong.append(f"{extra}: expected one line that names the extra, got {code}: {said[-300:]}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", choices=[[], *NEEDS], metavar="EXTRA", help=f"of {', '.join(NEEDS)}")
    parser.add_argument("--python", default=sys.executable, help="interpreter that makes the environments")
    options = parser.parse_args()
    extras, failed = options.extras or list(NEEDS), False
    with tempfile.TemporaryDirectory() as folder:
        root, work = Path(folder), Path(folder) / "work"
        work.mkdir()
        (work / "suite.toml").write_text(SUITE)
        plain = environment(options.python, root / "plain", str(ROOT))
        wrong = without(plain, work, extras)
        print("without extras:", "; ".join(wrong) or "works, and names each extra that is missing", flush=True)
        failed = bool(wrong)
        for extra in extras:
            try:
                venv = environment(options.python, root / extra, f"{ROOT}[{extra}]", plain)
                code, said = tried(venv, NEEDS[extra], work, f"with-{extra}")
            except subprocess.SubprocessError as error:
                code, said = 1, str(error)
            print(f"{extra} alone:", "works" if not code else said[-500:], flush=True)
            failed |= bool(code)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
