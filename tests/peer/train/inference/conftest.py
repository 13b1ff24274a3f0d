"""The small hospital of the training tests, trainers that predict with a function, and answers of a process."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fakes.function_trainer import FunctionTrainer
from fakes.hospital import MakeSetting, facts, make_setting, signals

__all__ = ["facts", "make_setting", "signals"]


@pytest.fixture
def volumes(make_setting: MakeSetting) -> FunctionTrainer:
    """Two classes: is a cell below or above 0.5?"""
    task = {"kind": "segmentation", "spatial_dims": 3, "in_channels": 1, "classes": 2}
    setting = make_setting(task=task, data={"input_size": [4, 4, 4]})
    return FunctionTrainer(setting, lambda images: torch.cat([0.5 - images, images - 0.5], dim=1) * 20)


@pytest.fixture
def pictures(make_setting: MakeSetting) -> FunctionTrainer:
    """Super-resolution by repeating every pixel."""
    task = {"kind": "super_resolution", "spatial_dims": 2, "in_channels": 3, "classes": 3}
    setting = make_setting(task=task, data={"input_size": [4, 4], "scale": 2})
    return FunctionTrainer(setting, lambda images: images.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3))


@pytest.fixture
def answer_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run the ``main`` of a process in this one: ``answer_of(main, request)``."""

    def answer(main: Callable[[], None], request: dict[str, Any]) -> Any:
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
        main()
        return json.loads(capsys.readouterr().out)

    return answer
