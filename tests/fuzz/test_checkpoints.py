"""Checkpoints with faults in the header of their arrays or in their manifest: each is loaded, or refused in one line.

As a stranger hands them over: with digests that are right, so that the reader itself meets the faults.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

import nextpolicy
from nextpolicy import runfiles
from nextpolicy.run import checkpoint

from . import documents
from .test_fuzz import SLOW, TINY, _as_main, judged

pytestmark = [pytest.mark.allow_rank_promotion, pytest.mark.allow_key_reuse, pytest.mark.quick_compilation]
pytestmark += [pytest.mark.no_cover]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    for name in ("run", "precious"):
        nextpolicy.train("probe/action", preset="default", out=root / name, quiet=True, **TINY)
    (root / "work").mkdir()
    return root


@pytest.mark.parametrize("count", [200, pytest.param(5_000, marks=SLOW)])
def test_damaged_checkpoints(folder: Path, count: int) -> None:
    run = nextpolicy.load(folder / "run")
    (rounds,) = checkpoint.list_rounds(run.path / "checkpoints")[-1:]
    arrays = run.path / "checkpoints" / f"{rounds:08d}" / checkpoint.ARRAYS
    file = runfiles.manifest_path(run.path / "checkpoints", rounds)
    manifest, data = runfiles.read_manifest(file), arrays.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    accepted = []

    def use() -> int:
        accepted.append(nextpolicy.load(run.path).snapshot())
        return 0

    def answer(given: tuple[str, bytes]) -> int:
        name, text = given
        if name == "header":
            arrays.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
            files = {checkpoint.ARRAYS: runfiles.record_file(arrays)}
            runfiles.write_manifest(file, {**manifest, "files": files})
        else:
            arrays.write_bytes(data)
            file.write_bytes(text)
            with contextlib.suppress(ValueError, RecursionError, TypeError):  # no JSON object: left as it is
                runfiles.write_manifest(file, json.loads(text))
        return _as_main(use)

    inputs = documents.jsons(6, count, {"header": header, "manifest": manifest})
    judged(inputs, count, answer, folder / "precious", folder / "work")
    assert count / 50 < len(accepted) < count / 2
