"""Named arrays in one file, in the safetensors format. Reading executes no code.

A file is the length of its header (8 bytes, little-endian), the header, and the arrays in C order, one after the other.
The header is JSON, padded with spaces: `{name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}}`. The
offsets count from the end of the header. Any reader of safetensors can open it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from nextpolicy.runfiles import FileRecord, check_regular

_DTYPES: dict[str, np.dtype] = {
    name: np.dtype(dtype)
    for name, dtype in {
        **{"BOOL": np.bool_, "BF16": jnp.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64},
        **{"F8_E4M3": jnp.float8_e4m3fn, "F8_E5M2": jnp.float8_e5m2, "C64": np.complex64},
        **{"I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64},
        **{"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64},
    }.items()
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_CHUNK = 1 << 26  # bytes per write


class Entry(NamedTuple):
    """Where an array lies in a file; `begin` counts from the beginning of the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> FileRecord:
    """Write a file to the disk and read it back; returns its size and digest. ValueError if a dtype has no name."""
    offset, header = 0, dict[str, Any]()
    for name, x in arrays.items():
        if x.dtype not in _NAMES:
            raise ValueError(f"{name}: expected one of {', '.join(map(str, _NAMES))}, got {x.dtype}")
        header[name] = {"dtype": _NAMES[x.dtype], "shape": x.shape, "data_offsets": [offset, offset + x.nbytes]}
        offset += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    parts = (np.ascontiguousarray(x).reshape(-1).view(np.uint8).data for x in arrays.values())
    pieces: list[bytes | memoryview] = [len(text).to_bytes(8, "little") + text, *parts]
    with open(path, "wb") as file:
        for chunk in _chunks(pieces):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return _read_back(path, pieces)


def _read_back(path: Path, pieces: Sequence[bytes | memoryview]) -> FileRecord:
    """The size and digest of a file; OSError unless it holds these bytes."""
    size, digest = 0, hashlib.blake2b()
    with open(path, "rb") as file:
        for chunk in _chunks(pieces):
            data = file.read(len(chunk))
            if data != chunk:
                raise OSError(f"{path.name} reads differently than it was written")
            digest.update(data)
            size += len(data)
    return FileRecord(size, digest.hexdigest())


def _chunks(pieces: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The same bytes in pieces of at most `_CHUNK`, small ones joined."""
    small = bytearray()
    for piece in pieces:
        if len(small) + len(piece) > _CHUNK:
            yield bytes(small)
            small.clear()
        if len(piece) > _CHUNK:
            yield from (piece[i : i + _CHUNK] for i in range(0, len(piece), _CHUNK))
        else:
            small += piece
    if small:
        yield bytes(small)


def entries(path: Path) -> dict[str, Entry]:
    """The arrays in a file, by name; ValueError if the file is not in this format or is cut short."""
    check_regular(path)
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if 8 + length <= size else b""
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        return {str(name): _entry(each, 8 + length, size) for name, each in header.items()}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise ValueError(f"{path.name}: expected a safetensors file, got something else") from None


def _entry(header: dict[str, Any], start: int, size: int) -> Entry:
    dtype, shape = _DTYPES[header["dtype"]], tuple(header["shape"])
    begin, end = header["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError
    if end - begin != math.prod(shape) * dtype.itemsize or start + end > size:
        raise ValueError
    return Entry(dtype, shape, start + begin)


def read(path: Path, entry: Entry) -> np.ndarray:
    """One array of a file."""
    return np.fromfile(path, entry.dtype, math.prod(entry.shape), offset=entry.begin).reshape(entry.shape)
