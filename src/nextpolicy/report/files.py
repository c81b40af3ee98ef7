"""Writes the files of a report, and replaces no file that the report did not write.

Each folder has a record of the report's files and their digests. A file that is not in the record, or has changed,
belongs to the user and is never replaced. New digests are recorded before the files change, so an interrupted report
can be written again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from nextpolicy.report.runs import ReportError
from nextpolicy.runfiles import read_object, write_whole

RECORD = ".nextpolicy-report.json"  # {"nextpolicy-report": {file name: [digest, ...]}}
_KEY = "nextpolicy-report"


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically."""
    try:
        write_whole(path, _bytes(content))
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error.strerror})") from None


def write_own(contents: Mapping[Path, str | bytes]) -> None:
    """Write all files and their records, or nothing if one of them would replace a user's file."""
    check_own(contents)
    by_folder: dict[Path, dict[str, str]] = {}
    for path, content in contents.items():
        by_folder.setdefault(path.parent, {})[path.name] = _digest(_bytes(content))
    for folder, digests in by_folder.items():
        folder.mkdir(parents=True, exist_ok=True)
        known = _record(folder)
        _write_record(folder, known | {name: [*known.get(name, []), new] for name, new in digests.items()})
    for path, content in contents.items():
        write(path, content)
    for folder, digests in by_folder.items():
        _write_record(folder, _record(folder) | {name: [new] for name, new in digests.items()})


def check_own(paths: Iterable[Path]) -> None:
    """Raise ReportError if a file exists that the report did not write, or that was edited since."""
    records: dict[Path, dict[str, list[str]]] = {}
    for path in paths:
        if path.parent not in records:
            records[path.parent] = _record(path.parent)
        if not os.path.lexists(path):
            continue
        known = records[path.parent].get(path.name)
        if known is None:
            raise _refusal(path, "exists and was not written by nextpolicy report")
        if not path.is_file() or _digest(path.read_bytes()) not in known:
            raise _refusal(path, "was edited after nextpolicy report wrote it")


def _refusal(path: Path, why: str) -> ReportError:
    return ReportError(f"out: {path} {why}; move it, or choose another --out or --files; nothing was written")


def _bytes(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _record(folder: Path) -> dict[str, list[str]]:
    file = folder / RECORD
    if not os.path.lexists(file):
        return {}
    try:
        content = read_object(file)[_KEY]
        return {str(name): [str(d) for d in digests] for name, digests in content.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise _refusal(file, "is damaged, so the files of the report are unknown") from None


def _write_record(folder: Path, known: Mapping[str, list[str]]) -> None:
    write(folder / RECORD, json.dumps({_KEY: dict(sorted(known.items()))}, indent=1) + "\n")
