"""An engine takes one version of vLLM, and leaves its modules for CPUs alone on GPUs."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import verl_hpc.rollout
from verl_hpc.errors import ClusterError
from verl_hpc.rollout import factory


@pytest.fixture
def install(monkeypatch):
    """Have a vLLM of some version, with nothing in it."""
    return lambda text: monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=text))


@pytest.mark.parametrize("text", ["0.32.0", "0.32.0+cu130", "0.32.0+rocm700"])
def test_the_version_that_was_checked_is_taken_on_any_device(install, text):
    install(text)
    factory._check_vllm()


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("text", ["0.24.0", "0.32.1", "0.33.0rc1+cu130"])
def test_other_versions_are_refused_before_anything_of_them_is_used(
    install, monkeypatch, text, device
):
    install(text)
    monkeypatch.setattr(factory.importlib.util, "find_spec", lambda name: name)
    with pytest.raises(ClusterError, match=rf"vLLM {text.replace('+', '.')}.*with 0.32.0"):
        factory.import_engine("vllm", device)


def test_modules_for_cpus_are_imported_by_functions_and_by_each_other_alone():
    """On GPUs they would look for classes that only builds for CPUs need."""
    for file in Path(verl_hpc.rollout.__file__).parent.glob("*.py"):
        if not file.stem.startswith("vllm_cpu"):
            at_once = ast.parse(file.read_text()).body
            imports = [
                ast.unparse(n) for n in at_once if isinstance(n, ast.Import | ast.ImportFrom)
            ]
            assert not [line for line in imports if "vllm_cpu" in line], file
