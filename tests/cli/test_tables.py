"""Tables fit the screen: nothing is cut off, no column is empty, and wide tables are split."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec.cli import app, tables
from mmspec.cli.tables import ScreenColumn, fitted_widths, print_table, split_columns

LONG = "some words that a narrow column has to wrap, and a_word_that_is_rather_long"


def shown(width: int, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, columns: int = 12) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    heads = ["name", *(f"column {number}" for number in range(columns))]
    rows = [
        (f"row-{row}", *(LONG if number % 3 == 0 else f"{row}.{number}" for number in range(columns)))
        for row in range(3)
    ]
    print_table("a title", heads, rows, heads[2::3])
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_nothing_is_cut_off_or_wider_than_the_screen(
    width: int, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(width, capsys, monkeypatch)
    assert max(map(len, lines)) <= width and not any("\u2026" in line for line in lines)
    text = " ".join(lines)
    assert all(word in text for word in (*LONG.split(), "column", "11", "2.10", "row-2"))
    assert text.count("a title") == text.count("row-0")  # every part begins with the names of the rows


def test_a_wide_screen_shows_one_table(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "more columns" not in " ".join(shown(900, capsys, monkeypatch))


def test_numbers_are_never_wrapped_and_texts_only_between_words() -> None:
    columns = [
        ScreenColumn("name", ("a", "b"), is_first=True),
        ScreenColumn("about", (LONG,)),
        ScreenColumn("s", ("1.0 (0.9-1.1)",), is_right=True),
    ]
    (part,) = split_columns(columns, 60)
    assert part == columns and fitted_widths(columns, 60) == [4, 60 - 10 - 4 - 13, 13]
    assert fitted_widths(columns, 10)[1] >= 1


@pytest.mark.parametrize(
    "words",
    [
        ("supported",),
        ("supported", "--all"),
        ("supported", "llava"),
        ("methods",),
        ("methods", "dspark"),
        ("methods", "sjd"),
        ("zoo", "list"),
    ],
    ids=" ".join,
)
def test_every_table_is_readable_at_80_columns(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    draw = tables._print_part
    monkeypatch.setattr(tables, "_print_part", lambda *part: (parts.append(part), draw(*part)))
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "80"})
    assert result.exit_code == 0, (result.stderr, result.exception)
    drawn = [line for line in result.stdout.splitlines() if re.match(r"^[\u2500-\u257f]", line)]
    assert all(len(line) <= 80 for line in drawn)
    for title, columns, widths in parts:
        for column, width in zip(columns, widths, strict=True):
            assert any(cell.strip() for cell in column.cells) and width >= min(column.narrowest, 24), (
                title,
                column.head,
            )
    text = re.sub(r"[\s\u2500-\u257f]", "", result.stdout)
    assert all(re.sub(r"\s", "", column.head) for _, columns, _ in parts for column in columns)
    assert all(
        column.cells[0].split()[0] in text for _, columns, _ in parts for column in columns if column.cells[0].strip()
    )


def test_a_pipe_gets_100_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = CliRunner().invoke(app, ["methods"]).stdout.splitlines()
    assert max(len(line) for line in lines if re.match(r"^[\u2500-\u257f]", line)) <= 100


def test_every_command_draws_its_tables_here() -> None:
    """So that the tables of benches, reports and estimates fit as those above do."""
    files = Path(tables.__file__).parent.glob("*.py")
    assert [file.name for file in files if "rich.table" in file.read_text()] == ["tables.py"]


def test_the_table_of_a_bench_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.evaluate.tiny_zoo import use_tiny_zoo

    use_tiny_zoo(monkeypatch)
    words = [
        "bench",
        "vlm",
        "--prompts",
        "1",
        "--new-tokens",
        "4",
        "--temperature",
        "0",
        "--methods",
        "lookup",
        "--threads",
        "1",
    ]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.stderr
    drawn = [line for line in result.stdout.splitlines() if re.match(r"^[\u2500-\u257f]", line)]
    assert drawn and max(map(len, drawn)) <= 80 and "seconds" in result.stdout
