"""The package itself: its exports, and its plain data without torch."""

import subprocess
import sys

import pytest

import models


def test_every_exported_name_is_there():
    assert all(getattr(models, name) is not None for name in models.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'models' has no attribute 'resnet11'"):
        _ = models.resnet11


def test_a_spec_is_judged_without_torch_and_a_model_made_without_loading_monai_first():
    code = """
import sys
from models.spec import remote_spec_problem
from models import remote_spec_problem as the_same
assert the_same is remote_spec_problem
assert "torch" not in sys.modules, "models.spec imports torch"
from models import MODELS
assert "torch" in sys.modules
assert "monai" not in sys.modules, "the registry imports monai"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
