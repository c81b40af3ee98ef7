"""The file of a checkpoint against the safetensors package, and files that are something else."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from nextpolicy import runfiles
from nextpolicy.run import tensor_file

DTYPES = [np.bool_, *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"]


def read_all(path: Path) -> dict[str, np.ndarray]:
    return {name: tensor_file.read(path, entry) for name, entry in tensor_file.entries(path).items()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    def bits(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        return {name: (x.shape, x.dtype, x.tobytes()) for name, x in arrays.items()}

    return bits(one) == bits(other)


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda name: name != "__metadata__"),
        st.sampled_from(DTYPES).flatmap(lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0))),
        max_size=5,
    )
)
def test_files_are_those_of_safetensors(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Their reader reads our files, and ours theirs, bit for bit."""
    path = tmp_path / "x"
    record = tensor_file.write(path, arrays)
    assert record == runfiles.record_file(path)
    assert same(read_all(path), arrays)
    assert same(safetensors.numpy.load_file(path), arrays)
    safetensors.numpy.save_file(arrays, path, metadata={"by": "somebody else"})
    assert same(read_all(path), arrays)


def test_sixteen_bits_of_jax_and_arrays_that_are_not_contiguous(tmp_path: Path) -> None:
    arrays = {"half": np.asarray(jnp.linspace(0, 1, 5, dtype=jnp.bfloat16)), "turned": np.arange(6.0).reshape(2, 3).T}
    tensor_file.write(tmp_path / "x", arrays)
    assert same(read_all(tmp_path / "x"), arrays)


def test_large_arrays_are_written_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "_CHUNK", 100)
    rng = np.random.default_rng(0)
    arrays = {str(i): rng.integers(0, 256, size, np.uint8) for i, size in enumerate((3, 99, 100, 1, 101, 250, 0, 50))}
    record = tensor_file.write(tmp_path / "x", arrays)
    assert record == runfiles.record_file(tmp_path / "x")
    assert same(safetensors.numpy.load_file(tmp_path / "x"), arrays)
    chunks = list(tensor_file._chunks([b"a" * 60, b"b" * 40, b"c", b"d" * 250, b"e"]))
    assert [len(chunk) for chunk in chunks] == [100, 1, 100, 100, 50, 1]
    assert b"".join(chunks) == b"a" * 60 + b"b" * 40 + b"c" + b"d" * 250 + b"e"


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "entry",
    [
        {**GOOD, "dtype": "F33"},
        {**GOOD, "dtype": ["F32"]},
        {**GOOD, "shape": [3]},
        {**GOOD, "shape": 2},
        {**GOOD, "shape": [2.0]},
        {**GOOD, "shape": [True, 2]},
        {**GOOD, "shape": [-1, -2]},
        {**GOOD, "data_offsets": [8, 16]},
        {**GOOD, "data_offsets": [-8, 0]},
        {**GOOD, "data_offsets": [0]},
        {"dtype": "F32", "shape": [2]},
        "F32",
        None,
    ],
    ids=str,
)
def test_a_header_that_makes_no_sense_is_one_line(tmp_path: Path, entry: Any) -> None:
    text = json.dumps({"x": entry}).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(ValueError, match=r"^x: expected a safetensors file, got something else$"):
        tensor_file.entries(tmp_path / "x")


def test_a_header_that_makes_sense_is_read(tmp_path: Path) -> None:
    """The control of the test above."""
    text = json.dumps({"x": GOOD}).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    assert read_all(tmp_path / "x")["x"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        bytes(8),
        (1 << 62).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"\xff\xff",
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
    ],
    ids=["empty", "short", "no header", "long header", "a list", "not UTF-8", "nested"],
)
def test_a_file_that_is_something_else_is_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ValueError, match=r"^x: expected a safetensors file, got something else$"):
        tensor_file.entries(tmp_path / "x")
