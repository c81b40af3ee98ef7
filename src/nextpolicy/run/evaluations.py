"""evaluations.csv: the evaluations during a training, a row for each member and time, with checksums."""

from __future__ import annotations

import zlib
from pathlib import Path

import pandas as pd

from nextpolicy.run.folder import RunError
from nextpolicy.runfiles import EVALUATIONS, check_regular, write_whole


def write(file: Path, table: pd.DataFrame) -> None:
    """Write the rows, atomically. The last column is a checksum of each row and of the one before it."""
    values = table.drop(columns="check", errors="ignore")
    lines = values.to_csv(index=False, header=False).splitlines()
    write_whole(file, values.assign(check=_checksums(lines)).to_csv(index=False).encode())


def _checksums(lines: list[str]) -> list[str]:
    """Of the text of each row together with the checksum before it, so that a missing row is noticed."""
    found, last = [], ""
    for line in lines:
        last = f"crc {zlib.crc32((last + line).encode()):08x}"
        found.append(last)
    return found


def read(file: Path) -> pd.DataFrame:
    """The rows. Raises if the file cannot be read, or a row was changed or removed after it was written."""
    try:
        check_regular(file)
        table = pd.read_csv(file)
        rows = [line.rpartition(",") for line in file.read_text().splitlines()[1:]]
        if "check" in table and _checksums([row[0] for row in rows]) != [row[2] for row in rows]:
            raise ValueError("a row was changed or removed")
        if not {"env_steps", "member", "mean"} <= set(table):
            raise ValueError("expected columns env_steps, member and mean")
        return table
    except (OSError, ValueError, KeyError) as error:
        line = " ".join(str(error).split())
        raise RunError(f"run: {file} cannot be read ({line}); move it away to start a new one") from None


def steps_of_best(run: Path, member: int) -> int:
    """The environment steps after which this member had its highest mean return."""
    rows = read(run / EVALUATIONS)
    rows = rows[rows["member"] == member]
    if rows["mean"].notna().sum() == 0:
        raise RunError(f"run: {run / EVALUATIONS} has no return of member {member}; train with --evaluate-every")
    return int(rows.loc[rows["mean"].idxmax(), "env_steps"])
