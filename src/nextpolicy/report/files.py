"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write(path: Path, content: str | bytes) -> None:
    """The file, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error.strerror})") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
