"""Reading the JSON files of a model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verl_hpc.errors import ModelError

_MOST_BYTES = 64 * 2**20
"""Limit on a file's size; an index of 100,000 tensors has 10 MB."""


def read_json_object(file: Path) -> dict[str, Any]:
    """The contents of a JSON file that must hold an object.

    Raises:
        ModelError: it is not a file, cannot be read, is not JSON, is too deep or too large, or
            holds no object.
    """
    try:
        if not file.is_file():  # reading a pipe may never end
            raise ModelError(f"model: {file} is not a file, or a broken link")
        with file.open("rb") as stream:
            text = stream.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ModelError(f"model: {file} has more than {_MOST_BYTES} bytes")
        content = json.loads(text)
    except OSError as error:
        raise ModelError(f"model: {file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"model: {file} is not JSON ({error}); is the download whole?") from None
    if not isinstance(content, dict):
        raise ModelError(f"model: {file} holds {type(content).__name__}; expected a JSON object")
    return content
