"""A run folder: config.json, status.json, metrics/ and checkpoints/. Files are written atomically."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shlex
import subprocess
import time
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from nextpolicy._version import __version__
from nextpolicy.config import ConfigError, TrainConfig, shown
from nextpolicy.envs import registry
from nextpolicy.runfiles import NOT_SETTINGS, STATISTICS_FILE, extensions, overwrite_json, read_object, write_json
from nextpolicy.settings import is_text, path_of, printable


class RunError(ValueError):
    """A run folder cannot be used. The message is one line that says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))  # paths and names may contain anything


@dataclass
class RunFolder:
    """Paths, lock, configuration and status of a run."""

    path: Path
    _lock: Any = field(default=None, repr=False)

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @classmethod
    def create(cls, path: str | Path, config: TrainConfig, extra: dict[str, Any]) -> RunFolder:
        """Create and lock a run folder. Raises if the folder is not empty."""
        folder = cls(path_of("out", path))
        if not is_text(folder.path):
            raise RunError(f"out: expected a path in UTF-8, got {str(path)!r}; choose another name")
        for place in (folder.path, *folder.path.parents):
            if place.exists() and not place.is_dir():
                where = "a file" if place == folder.path else "inside a file"
                raise RunError(f"out: expected a new or empty folder, got {folder.path}, which is {where}")
        if folder.path.is_dir():
            _clear_unfinished_start(folder.path)
        if folder.path.is_dir() and any(folder.path.iterdir()):
            what = "another run" if (folder.path / "config.json").exists() else "other files"
            command = f"`nextpolicy resume {shlex.quote(str(folder.path))}`"
            hint = f"{command} continues it; " if what == "another run" else ""
            raise RunError(
                f"out: expected a new or empty folder, got {folder.path}, which holds {what}; {hint}nothing was written"
            )
        settings = {**json.loads(config.to_json()), **extra, "about": describe_machine()}
        for part in (folder.path, folder.metrics, folder.checkpoints):
            part.mkdir(parents=True, exist_ok=True)
        folder.lock()
        try:
            if (folder.path / "config.json").exists():  # another process was faster
                raise RunError(f"out: expected a new or empty folder, got {folder.path}, which holds another run")
            write_json(folder.path / "config.json", settings)
            folder.set_status("running", rounds_done=0, rounds=config.num_rounds)
        except BaseException:
            folder.unlock()
            raise
        return folder

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open an existing run folder."""
        folder = cls(path_of("run", path))
        if not is_text(folder.path):
            raise RunError(f"run: expected a path in UTF-8, got {str(path)!r}; rename the folder")
        if not (folder.path / "config.json").is_file():
            raise RunError(
                f"run: expected a run folder, got {path} without config.json; `nextpolicy train` creates one"
            )
        return folder

    def lock(self) -> None:
        """Lock the folder for this process. The operating system releases the lock when the process ends."""
        # Do not follow a symbolic link: in another user's folder, it could point to one of our files.
        number = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        handle = os.fdopen(number, "w")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.close()
            raise RunError(f"run: {self.path} is being written by another process; wait for it or end it") from None
        self._lock = handle

    def locked(self) -> RunFolder:
        """Lock this folder and return it. Raises if files would be written and deleted in another place."""
        for part in (self.metrics, self.checkpoints):
            if part.is_symlink():
                raise RunError(f"run: expected a folder, got a link, {part}; move the whole run folder and link that")
        self.lock()
        return self

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def check_whole(self) -> None:
        """Raise if this is a small copy of a run, which has neither checkpoints nor all metrics."""
        if (self.path / STATISTICS_FILE).exists():
            raise RunError(f"run: {self.path} is a small copy for reports; use the run that it was made of")

    def raw_config(self) -> dict[str, Any]:
        """The content of config.json, not yet validated as a configuration."""
        file = self.path / "config.json"
        try:
            raw = read_object(file)
        except ValueError as error:
            raise RunError(f"run: {file} is not JSON ({error}); the run cannot be read") from None
        for name, kind in (("about", dict), ("custom", list)):
            if not isinstance(raw.get(name, kind()), kind):
                raise RunError(f"run: {file}: {name}: expected a {kind.__name__}, got {shown(raw[name])}")
        if not all(isinstance(name, str) for name in raw.get("custom", [])):
            raise RunError(f"run: {file}: custom: expected a list of names, got {shown(raw['custom'])}")
        try:
            extensions(raw)
        except ValueError as error:
            raise RunError(f"run: {file}: {error}; restore it") from None
        return raw

    def config(self) -> TrainConfig:
        """The configuration in config.json. Raises if this version cannot read it."""
        raw = self.raw_config()
        values = {k: v for k, v in raw.items() if k not in NOT_SETTINGS}
        try:
            return TrainConfig.from_flat(values)
        except ConfigError as error:
            made_by = raw.get("about", {}).get("nextpolicy", "an unknown version")
            raise RunError(
                f"run: {self.path} was made by nextpolicy {made_by}, this is {__version__}: {error}"
            ) from None

    def status(self) -> dict[str, Any]:
        try:
            return {"state": "unknown", **read_object(self.path / "status.json")}
        except (OSError, ValueError):
            return {"state": "unknown"}

    def set_status(self, state: str, **facts: Any) -> None:
        """Write status.json. `state` is running, finished, stopped (can be resumed) or failed (with a reason)."""
        overwrite_json(
            self.path / "status.json", {"state": state, **facts, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        )


def is_held(path: Path) -> bool:
    """Whether a process has locked the folder."""
    try:
        with os.fdopen(os.open(path / ".lock", os.O_RDONLY | os.O_NONBLOCK)) as handle:  # it may be a pipe
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _clear_unfinished_start(path: Path) -> None:
    """Clean up after a start that was killed before it wrote config.json, if the folder contains nothing else."""
    parts, lock = (path / "metrics", path / "checkpoints"), path / ".lock"
    unfinished = {*parts, lock, *path.glob(".config.json.*.tmp")}
    if any(p not in unfinished for p in path.iterdir()) or any(any(p.iterdir()) for p in parts if p.is_dir()):
        return
    if is_held(path):
        raise RunError(f"run: {path} is being written by another process; wait for it or end it")
    for empty in filter(Path.is_dir, parts):
        empty.rmdir()
    for leftover in unfinished - set(parts):
        leftover.unlink(missing_ok=True)


def fresh_path(config: TrainConfig, root: str | Path = "runs") -> Path:
    """An unused path runs/<env>-<algo>-<time>, with a numeric suffix if necessary."""
    words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{config.environment.env}-{'+'.join(config.run.algo)}").strip("-")
    stem = f"{words}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = [stem, *(f"{stem}-{i}" for i in range(2, 1000))]
    return next(Path(root) / name for name in candidates if not (Path(root) / name).exists())


def describe_machine() -> dict[str, Any]:
    """Versions, device, precision and git revision. Results depend on them and on the configuration."""
    import jax

    versions = {}
    for name in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", *registry.packages()):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "nextpolicy": __version__,
        "versions": versions,
        "python": platform.python_version(),
        "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
        "platform": jax.default_backend(),
        "matmul_precision": jax.config.values["jax_default_matmul_precision"] or "default",
        "x64": bool(jax.config.values["jax_enable_x64"]),
        "revision": _revision(),
    }


def _revision() -> str | None:
    """The git revision of the source; None if it is not a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
