"""What `import verl_hpc` costs, and what it says it has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import verl_hpc
from verl_hpc import tutorial_names

SCRIPT = """
import sys
before = set(sys.modules)
import verl_hpc
from verl_hpc import tutorial_names
names = dir(verl_hpc)
assert "PPOTrainer" in names and verl_hpc.__version__, names
print(" ".join(sorted(set(sys.modules) - before)))
"""


def test_the_import_costs_nothing_but_the_package_itself():
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    # Nothing to load but this file: whatever else is imported is of the standard library.
    imported = {name.split(".")[0] for name in found.stdout.split()}
    assert imported - set(sys.stdlib_module_names) == {"verl_hpc"}
    assert len(found.stdout.split()) < 30


def test_every_name_that_dir_lists_is_there():
    assert verl_hpc.__version__.count(".") == 2
    for name in tutorial_names.MODULES:
        assert name in dir(verl_hpc)
        assert getattr(verl_hpc, name).__name__ == name


def test_type_checkers_see_the_same_names():
    stub = Path(verl_hpc.__file__).with_suffix(".pyi").read_text()
    imports = re.findall(r"^from (\S+) import (\S+) as \2$", stub, re.M)
    assert {name: module for module, name in imports} == tutorial_names.MODULES


def test_dir_lists_what_else_a_package_has():
    import verl_hpc.metrics

    assert {"MetricsExporter", "__doc__", "__path__"} <= set(dir(verl_hpc.metrics))
    rooms = {"data", "metrics", "models", "rollout", "trainer", "utils"}
    public = {name for name in dir(verl_hpc) if not name.startswith("_")}
    assert public - rooms == tutorial_names.MODULES.keys()
    assert {"__version__", "metrics", "__name__"} <= set(dir(verl_hpc))


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        _ = verl_hpc.Nope
