"""`report` at the command line: tables for people and scripts, and folders that it refuses."""

import json
from pathlib import Path
from typing import Any

from fakes.cli import drawn, refused_in_one_line
from peer.cli.report import _render


def document(**changes: Any) -> dict[str, Any]:
    own = {"published": False}
    table = {
        "title": "AUC",
        "columns": ["Local Test: europe", "Local Test: Mean", "Global Test: europe", "Global Test: Mean", "steps"],
        "rows": [
            {"label": "Local", "cells": ["0.1", "0.2", "0.3", "0.4", "9"], "ranks": [0, 2, 0, 2, 0], **own},
            {"label": "FedSKD", "cells": ["0.5", "0.6", "0.7", "0.8", "9"], "ranks": [1, 1, 1, 1, 0], **own},
        ],
    }
    values = {"has_room": True, "room": {"mean": 0.166}}
    room = {"auc": {"local": values, "global": {"has_room": False, "room": {"mean": 0.004}}}}
    result = {"partition": "sites", "models": "mixed", "methods": {}, "room": room, "tables": [table]}
    page, notes = "out/report/index.html", ["17 of 20 runs are there."]
    return {"metric": "auc", "page": page, "over": "5 folds", "notes": notes, "results": [result], **changes}


def test_the_terminal_shows_the_means_what_is_missing_and_where_the_files_are() -> None:
    text = drawn(_render(document()), width=120)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "method Local Test: Mean Global Test: Mean steps" in lines
    assert "Local 0.2 0.4 9" in lines
    assert "europe" not in text
    assert "17 of 20 runs are there." in text
    assert "pooled bound: Local Test 16.6 points, Global Test 0.4 points (none)." in " ".join(text.split())
    assert "out/report" in text


def test_several_settings_are_told_apart() -> None:
    (result,) = document()["results"]
    text = drawn(_render(document(results=[result, {**result, "partition": "alpha-0.5"}])), width=120)
    assert "AUC: sites, mixed" in text
    assert "AUC: alpha-0.5, mixed" in text


def test_a_folder_without_results_of_this_format_is_refused_in_one_line(tmp_path: Path) -> None:
    assert "there is no experiment.json" in refused_in_one_line("UsageError", "report", tmp_path)
    (tmp_path / "experiment.json").write_text(json.dumps({"format": 99, "version": "3.0.0"}))
    problem = refused_in_one_line("StateError", "report", tmp_path, "--json")
    assert "format 99" in problem
    assert "mhfl-peer 3.0.0" in problem
