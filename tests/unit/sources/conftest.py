"""What tests of sources share."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.unit.layout.models import PUBLISHED


@pytest.fixture(scope="session")
def small_llama(tmp_path_factory):
    """A directory with a published config.json, and with weights that are not its."""
    directory = tmp_path_factory.mktemp("small") / "llama"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(next(iter(PUBLISHED.values()))[0]))
    save_file({"weight": torch.ones(2)}, directory / "model.safetensors")
    return directory
