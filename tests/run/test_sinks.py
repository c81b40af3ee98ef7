"""TensorBoard and W&B: where members go, and what is missing is said before there is a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from nextpolicy.config import ConfigError, Member, TrainConfig, presets
from nextpolicy.run import metrics, sinks

pytestmark = pytest.mark.quick_compilation

CONFIG = {"algo": ("ppo", "sv-dynamic"), "seeds": (3, 5), "sweep": {"lam": (0.9, 0.95)}}


def config(**fields: object) -> TrainConfig:
    return presets.build("probe/constant", **{**CONFIG, **fields})


def events(folder: Path) -> dict[str, dict[int, float]]:
    """Tag -> {step: value} of the event files in a folder."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = {}
    for file in sorted(folder.glob("events*")):
        data = file.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def test_members_have_folders_of_their_own_and_the_same_tags(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    asked = config(tensorboard=True)
    members = asked.members()
    numbers = np.arange(2 * len(members), dtype=np.float32).reshape(len(members), 2)
    frame = metrics.table(members, 0, 16, {"episode_return": numbers, "diff": numbers * np.nan}, 1.0)
    (sink,) = sinks.make(asked, tmp_path)
    sink.write(frame)
    sink.close()
    folders = sorted(p.name for p in (tmp_path / "tensorboard").iterdir())
    variants = [f"{algo}_lam={lam}" for algo in ("ppo", "sv-dynamic") for lam in ("0.9", "0.95")]
    assert folders == sorted(f"{variant}-seed{seed}" for variant in variants for seed in (3, 5))
    for i, member in enumerate(members):
        (name,) = [n for n in folders if n == f"{member.variant.replace('[', '_').strip(']')}-seed{member.seed}"]
        drawn = events(tmp_path / "tensorboard" / name)
        assert drawn["episode_return"] == {16: 2 * i, 32: 2 * i + 1}
        assert "diff" not in drawn, "numbers that are not finite are left out"
        assert not [tag for tag in drawn if "seed" in tag or "ppo" in tag]


def test_folder_names_are_safe_and_no_two_alike() -> None:
    odd = [Member(0, "a/../b"), Member(0, "a:b"), Member(0, "a*b"), Member(1, "a*b"), Member(0, "ppo")]
    names = sinks.folder_names(odd)
    assert len(set(names)) == len(names)
    assert names[3:] == ["a_b-seed1", "ppo-seed0"]
    assert not [name for name in names if set(name) & set('/\\:*?"<>|[] ')]


@pytest.mark.parametrize(
    ("field", "value", "package"), [("tensorboard", True, "tensorboardX"), ("wandb", "project", "wandb")]
)
def test_a_missing_extra_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: object, package: str
) -> None:
    sinks.check(config())
    monkeypatch.setitem(sys.modules, package, None)
    words = rf"^{field}: {package} is not installed; pip install -e '\.\[{field}\]' in a checkout"
    for refuse in (lambda c: sinks.check(c), lambda c: sinks.make(c, tmp_path / "run")):
        with pytest.raises(ConfigError, match=words):
            refuse(config(**{field: value}))
    assert not list(tmp_path.iterdir())


def test_no_package_index_is_advised() -> None:
    """No index has the package: `pip install "nextpolicy[...]"` finds nothing."""
    source = Path(sinks.__file__).parents[1]
    assert not [str(file) for file in source.rglob("*.py") if "nextpolicy[" in file.read_text(encoding="utf-8")]
