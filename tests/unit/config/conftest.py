"""Files of YAML in a directory of the test's own."""

import pytest
import yaml


@pytest.fixture
def write(tmp_path):
    """Write files by name: a string as it is, anything else as YAML; return the first's path."""

    def write(**files):
        for name, content in files.items():
            text = content if isinstance(content, str) else yaml.safe_dump(content)
            (tmp_path / f"{name}.yaml").write_text(text)
        return tmp_path / f"{next(iter(files))}.yaml"

    return write
