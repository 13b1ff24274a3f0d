"""`report` at the command line: tables for people and scripts, and folders that it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer.cli import main
from peer.cli.report import _render
from peer.errors import EXIT_CODES


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def document(**changes: Any) -> dict[str, Any]:
    table = {
        "title": "AUC",
        "columns": ["Local Test: europe", "Local Test: Mean", "Global Test: europe", "Global Test: Mean", "steps"],
        "rows": [
            {
                "label": "Local",
                "published": False,
                "cells": ["0.1", "0.2", "0.3", "0.4", "9"],
                "ranks": [0, 2, 0, 2, 0],
            },
            {
                "label": "FedSKD",
                "published": False,
                "cells": ["0.5", "0.6", "0.7", "0.8", "9"],
                "ranks": [1, 1, 1, 1, 0],
            },
        ],
    }
    result = {"partition": "sites", "models": "mixed", "methods": {}, "tables": [table]}
    return {
        "page": "out/report/index.html",
        "over": "5 folds",
        "notes": ["17 of 20 runs are there."],
        "results": [result],
        **changes,
    }


def draw(value: Any) -> str:
    import io

    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=120).print(value)
    return out.getvalue()


def test_the_terminal_shows_the_means_what_is_missing_and_where_the_files_are() -> None:
    text = draw(_render(document()))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "method Local Test: Mean Global Test: Mean steps" in lines
    assert "Local 0.2 0.4 9" in lines
    assert "europe" not in text
    assert "17 of 20 runs are there." in text
    assert "out/report" in text


def test_several_settings_are_told_apart() -> None:
    (result,) = document()["results"]
    text = draw(_render(document(results=[result, {**result, "partition": "alpha-0.5"}])))
    assert "AUC: sites, mixed" in text
    assert "AUC: alpha-0.5, mixed" in text


def test_a_folder_without_results_is_refused_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra `research`")
    finished = run(tmp_path)
    assert EXIT_CODES[finished.exit_code].name == "UsageError"
    assert "there is no experiment.json" in finished.output


def test_results_of_another_format_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra `research`")
    (tmp_path / "experiment.json").write_text(json.dumps({"format": 99, "version": "3.0.0"}))
    finished = run(tmp_path, "--json")
    assert EXIT_CODES[finished.exit_code].name == "StateError"
    assert "format 99" in finished.output
    assert "mhfl-peer 3.0.0" in finished.output


def test_no_folder_is_a_mistake_in_the_command(tmp_path: Path) -> None:
    assert EXIT_CODES[run(tmp_path / "nowhere").exit_code].name == "UsageError"
