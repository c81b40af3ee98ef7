"""Files that are there whole or not at all, and none but our own replaced.

Each folder that is written to has a small record of our files and their digests. A file that is not in it, or no longer
as it was written, is the user's: it is never replaced. The record holds the new digests before the files change, so a
report that was cut off can be written again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from nextpolicy.report.runs import ReportError

RECORD = ".nextpolicy-report.json"  # {"nextpolicy-report": {file name: [digest, ...]}}
_KEY = "nextpolicy-report"


def write(path: Path, content: str | bytes) -> None:
    """The file, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(_bytes(content))
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error.strerror})") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_own(contents: Mapping[Path, str | bytes]) -> None:
    """All files and their records; nothing at all if one of them would replace what is not ours."""
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
    """Refuse what exists and is not as we wrote it."""
    records: dict[Path, dict[str, list[str]]] = {}
    for path in paths:
        if path.parent not in records:
            records[path.parent] = _record(path.parent)
        if not os.path.lexists(path):
            continue
        known = records[path.parent].get(path.name)
        if known is None:
            raise _refusal(path, "exists and is not on record as nextpolicy's own")
        if not path.is_file() or _digest(path.read_bytes()) not in known:
            raise _refusal(path, "has been edited since nextpolicy wrote it")


def _refusal(path: Path, why: str) -> ReportError:
    return ReportError(f"out: {path} {why}; move it or choose another --out or --files; nothing was written")


def _bytes(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _record(folder: Path) -> dict[str, list[str]]:
    file = folder / RECORD
    if not os.path.lexists(file):
        return {}
    try:
        return {str(name): [str(d) for d in digests] for name, digests in json.loads(file.read_text())[_KEY].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise _refusal(file, "is damaged, so nextpolicy cannot tell its own files") from None


def _write_record(folder: Path, known: Mapping[str, list[str]]) -> None:
    write(folder / RECORD, json.dumps({_KEY: dict(sorted(known.items()))}, indent=1) + "\n")
