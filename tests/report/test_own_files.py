"""Only our own files are replaced, and what stands in files is taken by nobody for code."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pandas as pd
import pytest

from nextpolicy.report import files, palette

from .synthetic import report, write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "ant", "brax/ant", seeds=1, algo=("ppo", "sv-dynamic"))
    return root


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory) -> dict[str, bytes]:
    """Every file of a report, by its path."""
    folder = tmp_path_factory.mktemp("written")
    assert report(runs, "--out", folder / "report.html") == 0
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def put(folder: Path, all_files: dict[str, bytes]) -> None:
    for name, content in all_files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def refused(capsys, folder: Path, name: str, runs: Path) -> str:
    """The one line; nothing in the folder has changed."""
    before = contents(folder)
    assert report(runs, "--out", folder / "report.html") == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1, said
    assert str(folder / name) in said
    assert said.endswith("; move it, or choose another --out or --files; nothing was written")
    assert contents(folder) == before
    return said


OURS = [
    "report.html",
    *(f"report-files/{name}" for name in ("members.csv", "scores.tex", "aggregate.md", "brax-bars.svg")),
    "report-files/brax-diff.png",
]


@pytest.mark.parametrize("name", OURS)
def test_a_users_own_file_is_not_replaced_and_nothing_is_written(name, runs, tmp_path, capsys):
    put(tmp_path, {name: b"mine"})
    assert "exists and was not written by nextpolicy report" in refused(capsys, tmp_path, name, runs)


@pytest.mark.parametrize("name", OURS)
def test_a_file_of_ours_that_was_edited_is_not_replaced(name, runs, written, tmp_path, capsys):
    assert name in written
    put(tmp_path, {**written, name: written[name] + b"\n"})
    assert "was edited after nextpolicy report wrote it" in refused(capsys, tmp_path, name, runs)


def test_our_own_files_are_replaced_and_others_beside_them_left_alone(runs, written, tmp_path):
    put(tmp_path, {**written, "report-files/notes.md": b"mine", "mine.html": b"mine"})
    assert report(runs, "--out", tmp_path / "report.html", "--title", "Another") == 0
    after = contents(tmp_path)
    assert b"<title>Another</title>" in after["report.html"]
    assert (after["report-files/notes.md"], after["mine.html"]) == (b"mine", b"mine")
    assert set(after) == {*written, "report-files/notes.md", "mine.html"}


def test_a_page_alone_keeps_the_record_of_its_neighbours(runs, tmp_path):
    for name in ("a.html", "b.html", "a.html", "b.html"):
        assert report(runs, "--out", tmp_path / name, "--page-only") == 0


def test_a_report_that_was_cut_off_can_be_written_again(runs, written, tmp_path, monkeypatch):
    put(tmp_path, written)
    whole, left = files.write, [5]

    def dies(path: Path, content: str | bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        whole(path, content)

    monkeypatch.setattr(files, "write", dies)
    assert report(runs, "--out", tmp_path / "report.html", "--title", "Cut off") == 130
    assert b"Cut off" in (tmp_path / "report.html").read_bytes()
    monkeypatch.undo()
    assert report(runs, "--out", tmp_path / "report.html") == 0
    assert contents(tmp_path) == written


@pytest.mark.parametrize("content", ["{", "[]", '{"mine": {}}', '{"nextpolicy-report": {"a": 1}}'])
def test_a_record_that_is_damaged_or_not_ours(content, runs, tmp_path, capsys):
    for name in (f"report-files/{files.RECORD}", files.RECORD):
        put(tmp_path, {name: content.encode()})
        assert "is damaged, so the files of the report are unknown" in refused(capsys, tmp_path, name, runs)


def test_folders_and_links_in_the_place_of_a_file(runs, written, tmp_path, capsys):
    put(tmp_path, {n: c for n, c in written.items() if n != "report-files/members.csv"})
    (tmp_path / "report-files" / "members.csv").mkdir()
    refused(capsys, tmp_path, "report-files/members.csv", runs)
    (tmp_path / "report-files" / "members.csv").rmdir()
    put(tmp_path, {"elsewhere.csv": b"mine"})
    (tmp_path / "report-files" / "members.csv").symlink_to(tmp_path / "elsewhere.csv")
    refused(capsys, tmp_path, "report-files/members.csv", runs)


# Files that others read


def read_back(tmp_path: Path, name: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO((tmp_path / "report-files" / name).read_text(), newline="")))


FORMULAS = {"ant": "=1+1", "hopper": "+1", "pusher": "-1+1", "fast": "@SUM(A1)", "swimmer": '=HYPERLINK("x","y")'}


def test_no_cell_of_a_csv_is_a_formula(tmp_path):
    for env, reason in {**FORMULAS, "walker2d": "plain, -1 = 1"}.items():
        run = write_run(tmp_path / "runs" / f"={env}", f"brax/{env}", seeds=1, state="failed", reason=reason)
        for part in (run / "metrics").iterdir():
            part.unlink()
    write_run(tmp_path / "runs" / "b", "brax/reacher", seeds=2, columns={"entropy": lambda algo, seed, k: 0.0 * k - 1})
    assert report(tmp_path / "runs", "--out", tmp_path / "report.html") == 0
    tables = [p.name for p in (tmp_path / "report-files").glob("*.csv")]
    assert {"members.csv", "brax-sv-static.csv"} <= set(tables)
    text = [cell for name in tables for row in read_back(tmp_path, name) for cell in row if not _is_number(cell)]
    assert not [cell for cell in text if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))]
    # The text is still there, and negative numbers are numbers.
    members = pd.read_csv(tmp_path / "report-files" / "members.csv")
    assert set(members["reason"].dropna()) == {"plain, -1 = 1", *(f"'{reason}" for reason in FORMULAS.values())}
    assert set(members["run"]) == {"b", *(f"'={env}" for env in (*FORMULAS, "walker2d"))}
    assert set(members["entropy"].dropna()) == {-1.0}


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def test_names_are_drawn_as_they_are(tmp_path):
    names = ("$x_$", "$y^$", "a$b", r"\$c", "_x^2", r"\alpha")
    for name in names:
        write_run(tmp_path / "runs" / name, "brax/ant", seeds=1)
    assert report(tmp_path / "runs", "--allow-mixed", "--out", tmp_path / "report.html") == 0
    for figure in ("bars", "learning-curves", "lifespan", "diff", "scatter"):
        drawn = (tmp_path / "report-files" / f"brax-{figure}.svg").read_text()
        for name in names:
            assert f"ant ({name})" in drawn, figure


def test_what_a_status_says_is_drawn_as_it_is(tmp_path):
    write_run(tmp_path / "runs" / "a", "brax/ant", seeds=1, algo=("ppo",))
    (tmp_path / "runs" / "a" / "status.json").write_text(json.dumps({"state": "$x_$"}))
    assert report(tmp_path / "runs", "--out", tmp_path / "report.html") == 0
    assert ">$x_$, 20 of 20 rounds<" in (tmp_path / "report-files" / "brax-learning-curves.svg").read_text()


def test_files_are_written_all_or_none(tmp_path):
    """One of two belongs to the user, or is a link to nowhere: the other is not written either."""
    ours, theirs = tmp_path / "a.md", tmp_path / "b.md"
    theirs.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="was not written by nextpolicy report"):
        files.write_own({ours: "new", theirs: "new"})
    assert not ours.exists()
    assert theirs.is_symlink()


@pytest.mark.parametrize("cut", [1, 2])
def test_old_and_new_content_are_both_ours_after_a_cut(tmp_path, monkeypatch, cut):
    """The second report dies before its first or its second file: what is on disk is of either report."""
    paths = [tmp_path / "a.md", tmp_path / "b.md"]
    files.write_own(dict.fromkeys(paths, "old"))
    write, calls = files.write, []

    def dying(path, content):
        calls.append(path)
        if [p for p in calls if p in paths][cut - 1 :]:
            raise KeyboardInterrupt
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", dying)
        with pytest.raises(KeyboardInterrupt):
            files.write_own(dict.fromkeys(paths, "new"))
    assert [p.read_text() for p in paths] == ["new"] * (cut - 1) + ["old"] * (3 - cut)
    files.write_own(dict.fromkeys(paths, "newer"))
    assert [p.read_text() for p in paths] == ["newer"] * 2


def test_colours_come_round_again_once_all_are_taken():
    names = [f"sv-dynamic[delta_v={i}]" for i in range(len(palette.COLOURS))]
    places = [palette.slot(name, ["ppo", *names]) for name in names]
    assert places == list(range(len(palette.FIXED), len(palette.FIXED) + len(names)))
    assert [palette.is_second(p) for p in places] == [p >= len(palette.COLOURS) for p in places]
    assert palette.is_second(len(palette.COLOURS))
