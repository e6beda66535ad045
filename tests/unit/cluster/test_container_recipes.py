"""The container recipes: a definition file that Apptainer will read, and versions that agree."""

import os
import re
import runpy
import subprocess
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.cluster.requests import ROOT
from tests.unit.cluster.shellcheck import shellcheck

RECIPES = ROOT / "containers"
DEFINITION = RECIPES / "verl_hpc.def"
INSTALL = ROOT / "launch/install.sh"

# Apptainer's own lists. Parsers of definition files take a mistyped name for a new section.
HEADERS = {
    "bootstrap", "from", "registry", "namespace", "stage", "library", "mirrorurl", "osversion",
    "include", "product", "user", "regcode", "productpgp", "registerurl", "modules", "otherurl",
    "updateurl", "updatepgp", "sles", "fingerprints", "confurl", "setopt",
}  # fmt: skip
SECTIONS = {
    "help", "setup", "files", "labels", "environment", "pre", "post", "runscript", "test",
    "startscript", "arguments",
}  # fmt: skip


def parse(text):
    """Headers and sections of a definition file, or the line that is neither."""
    headers, sections, current = {}, {}, None
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"%(\S+)", line):
            current = match.group(1)
            if current not in SECTIONS or current in sections:
                raise ValueError(f"line {number}: section %{current}")
            sections[current] = []
        elif current is not None:
            sections[current].append(line)
        elif line.strip() and not line.startswith("#"):
            key, separator, value = line.partition(":")
            if not separator or key.strip().lower() not in HEADERS:
                raise ValueError(f"line {number}: header {key}")
            headers[key.strip().lower()] = value.strip()
    if headers.get("bootstrap") is None or headers.get("from") is None:
        raise ValueError("no Bootstrap or no From")
    return headers, {name: "\n".join(lines) for name, lines in sections.items()}


def test_the_base_image_is_pinned_and_known_names_alone_are_used():
    headers, sections = parse(DEFINITION.read_text())
    copied = [line.split()[0] for line in sections["files"].split("\n") if line.strip()]
    assert copied and all((ROOT / file).is_file() for file in copied)
    assert headers["bootstrap"] == "docker"
    assert re.fullmatch(r"nvidia/cuda:[\d.]+-cudnn-devel-ubuntu24\.04", headers["from"])
    assert set(sections) >= {"files", "post", "environment", "test", "help"}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"GPU": "intel"}, "GPU=intel on"),
        ({"LOCK": "/nowhere/none.txt"}, "copy requirements/gpu.txt there"),
    ],
)
def test_a_machine_without_a_recipe_and_a_recipe_without_the_lock(variables, words):
    environ = {"PATH": os.environ["PATH"]} | variables
    command = ["bash", RECIPES / "install.sh"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.parametrize("section", ["post", "environment", "test", "runscript"])
def test_shellcheck_of_sections(section, tmp_path):
    script = tmp_path / f"{section}.sh"
    script.write_text("#!/bin/sh\n" + parse(DEFINITION.read_text())[1][section] + "\n")
    assert shellcheck(script) == ""


# Versions


def pins():
    """Versions of the lock file, by the names that pip compares."""
    lines = (ROOT / "requirements/gpu.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    versions = {canonicalize_name(name): version for name, version in pairs}
    assert len(versions) == len(pairs), "a name is there twice"
    return versions


def constant(name):
    text = (RECIPES / "install.sh").read_text()
    return re.search(rf"^{name}=(\S+)", text, re.MULTILINE)[1]


def extras(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("setuptools.setup", lambda **fields: None)
    return runpy.run_path("setup.py")


def test_files_agree_with_each_other(monkeypatch):
    """What each file must say, by the versions and places that others name."""
    (demanded,) = re.findall(r"not \((\d+, \d+)\) <= sys.version_info", INSTALL.read_text())
    version, base = ".".join(demanded.split(", ")), parse(DEFINITION.read_text())[0]["from"]
    wanted = {
        "containers/install.sh": [
            f"PYTHON={version}.", '--requirement "$kept"', "--no-binary=mpi4py",
            "MPI4PY_BUILD_MPICC=/opt/mpich/bin/mpicc", "ibverbs-providers", "libibverbs1",
            "librdmacm1",
        ],
        "containers/verl_hpc.def": ["requirements/gpu.txt /opt/gpu.txt"],
        "containers/Containerfile": [
            "requirements/gpu.txt /opt/", f"\nARG BASE=docker.io/{base}\nFROM ${{BASE}}\n",
            f"vllm-openai-rocm:v{pins()['vllm']}",
        ],
        "containers/enroot.sh": ["LOCK=/requirements/gpu.txt", f"docker://{base}"],
        "containers/check.sh": [f"sys.version_info[:2] == ({demanded})"],
        "requirements/gpu.txt": [f"for Python {version} on"],
        "pyproject.toml": [f'python_version = "{version}"'],
    }  # fmt: skip
    texts = {file: (ROOT / file).read_text() for file in wanted}
    assert [(f, w) for f, words in wanted.items() for w in words if w not in texts[f]] == []
    assert f"mpich=={constant('MPICH')}" in extras(monkeypatch)["EXTRAS"]["cpu"]


def test_apex_is_a_commit_of_nvidias_and_is_fetched_before_anything_is_built():
    text = (RECIPES / "install.sh").read_text()
    assert re.fullmatch(r"[0-9a-f]{40}", constant("APEX"))
    assert text.index('github.com/NVIDIA/apex "$APEX"') < text.index("MPICH $MPICH")
    assert "apex" not in pins()


def test_versions_are_those_of_the_package(monkeypatch):
    package = extras(monkeypatch)
    for need in map(Requirement, (*package["BASE"], *package["EXTRAS"]["gpu"])):
        version = pins().get(canonicalize_name(need.name))
        assert version is not None, f"{need.name} is not in requirements/gpu.txt"
        assert need.specifier.contains(version), f"{need} and {version}"


def test_what_is_locked_is_what_was_tested_where_no_gpu_decides():
    """Packages that have no builds for GPUs are locked at the versions that the tests run."""
    lines = (ROOT / "requirements/cpu.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    for name in ("h5py", "mpi4py", "megatron-core", "submitit", "reasoning_gym", "math-verify"):
        assert pins()[canonicalize_name(name)] == tested[name]


def test_what_transformer_engine_and_apex_need_is_locked():
    """What build_tools/pytorch.py and the wheel of the core declare in Transformer Engine 2.11.0,
    and what both builds import."""
    needs = {"torch", "einops", "onnxscript", "onnx", "packaging", "pydantic"}
    needs |= {"importlib-metadata", "setuptools", "wheel", "ninja"}
    assert needs <= pins().keys()
    text = (RECIPES / "install.sh").read_text().replace("\\\n", "")
    for line in re.findall(r"^.*--no-build-isolation.*$", text, re.MULTILINE):
        assert "--no-deps" in line
    # It is one that Megatron-core declares.
    (need,) = [n for n in requires("megatron-core") if n.startswith("transformer-engine")]
    assert Requirement(need).specifier.contains(constant("TRANSFORMER_ENGINE"))
