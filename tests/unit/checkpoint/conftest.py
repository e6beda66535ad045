"""A model and a whole step, made once; what changes a step takes a copy."""

import shutil
from pathlib import Path

import pytest

from tests.unit.checkpoint.steps import make_model, write_step


@pytest.fixture(scope="package")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("checkpoint") / "model")


@pytest.fixture(scope="package")
def original(model):
    return write_step(model, model.parent / "checkpoints")


@pytest.fixture
def step(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / original.name))
