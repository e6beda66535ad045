"""The container recipes: a definition file that Apptainer will read, and versions that agree."""

import os
import re
import runpy
import subprocess
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

from tests.unit.cluster.requests import ROOT
from tests.unit.cluster.shellcheck import shellcheck

RECIPES = ROOT / "containers"
DEFINITION = RECIPES / "verl_hpc.def"

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


def test_the_definition_file_has_known_headers_and_sections():
    headers, sections = parse(DEFINITION.read_text())
    assert headers["bootstrap"] == "docker"
    assert set(sections) >= {"files", "post", "environment", "test", "help"}


@pytest.mark.parametrize(
    "right, wrong",
    [("%post", "%psot"), ("Bootstrap:", "Bootstarp:"), ("From:", "Form:"), ("%test", "%post")],
)
def test_the_check_finds_a_mistyped_name(right, wrong):
    with pytest.raises(ValueError, match=r"line \d+: (section|header)"):
        parse(DEFINITION.read_text().replace(right, wrong, 1))


def test_the_base_image_is_pinned_and_the_same_everywhere():
    base = parse(DEFINITION.read_text())[0]["from"]
    assert re.fullmatch(r"nvidia/cuda:[\d.]+-cudnn-devel-ubuntu24\.04", base)
    assert f"docker://{base}" in (RECIPES / "enroot.sh").read_text()
    containerfile = (RECIPES / "Containerfile").read_text()
    assert f"\nARG BASE=docker.io/{base}\nFROM ${{BASE}}\n" in containerfile


def test_the_image_for_amd_has_the_vllm_of_the_package():
    (tag,) = re.findall(r"vllm-openai-rocm:v([\d.]+)", (RECIPES / "Containerfile").read_text())
    assert tag == pins()["VLLM"]


def test_a_machine_that_no_recipe_is_for():
    command = ["bash", RECIPES / "install.sh"]
    environ = {"GPU": "intel", "PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 2
    assert "GPU=intel on" in done.stderr


def test_files_that_are_copied_exist():
    for line in parse(DEFINITION.read_text())[1]["files"].split("\n"):
        if line.strip():
            assert (ROOT / line.split()[0]).is_file()


@pytest.mark.parametrize("section", ["post", "environment", "test", "runscript"])
def test_shellcheck_of_sections(section, tmp_path):
    script = tmp_path / f"{section}.sh"
    script.write_text("#!/bin/sh\n" + parse(DEFINITION.read_text())[1][section] + "\n")
    assert shellcheck(script) == ""


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.sh")), ids=lambda path: path.name)
def test_shellcheck_of_scripts(path):
    assert shellcheck(path) == ""


# Versions


def pins():
    found = re.findall(r"^([A-Z0-9_]+)=([\d.]+)\b", (RECIPES / "install.sh").read_text(), re.M)
    return dict(found)


def extras(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("setuptools.setup", lambda **fields: None)
    return runpy.run_path("setup.py")


def test_versions_are_those_of_the_package(monkeypatch):
    package = extras(monkeypatch)
    gpu = dict(re.match(r"([\w-]+)(.*)", need).groups() for need in package["EXTRAS"]["gpu"])
    for name, variable in (
        ("torch", "TORCH"),
        ("vllm", "VLLM"),
        ("megatron-core", "MEGATRON_CORE"),
    ):
        assert gpu[name] == f"=={pins()[variable]}"
    for name, variable in (("mpi4py", "MPI4PY"), ("h5py", "H5PY")):
        assert gpu[name].startswith(">=")
        least = gpu[name][2:].split(",")[0]
        assert version(pins()[variable]) >= version(least)


def version(text):
    return tuple(map(int, text.split(".")))


def test_what_the_package_needs_is_installed(monkeypatch):
    package = extras(monkeypatch)
    text = (RECIPES / "install.sh").read_text()
    # transformers comes with vLLM, numpy and sympy with torch.
    besides = {"transformers", "numpy", "sympy"}
    for need in (*package["BASE"], *package["COMPUTE"]):
        name = re.match(r"[\w-]+", need).group()
        if name not in besides:
            assert f"{name}==" in text or f'"{need}"' in text, need


def test_transformer_engine_is_one_that_megatron_core_declares():
    (need,) = [n for n in requires("megatron-core") if n.startswith("transformer-engine")]
    assert Requirement(need).specifier.contains(pins()["TRANSFORMER_ENGINE"])


@pytest.mark.parametrize("drivers", [False, True])
def test_an_image_without_drivers_of_infiniband_fails(tmp_path, drivers):
    """What comes after the drivers needs an image."""
    directory = tmp_path / "usr/lib/x86_64-linux-gnu/libibverbs"
    directory.mkdir(parents=True)
    if drivers:
        (directory / "libmlx5-rdmav34.so").touch()
    done = subprocess.run(
        ["bash", RECIPES / "check.sh", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == (127 if drivers else 1)
    assert (
        "no driver for InfiniBand adapters: install ibverbs-providers" in done.stderr
    ) != drivers


def test_the_drivers_of_infiniband_are_installed():
    packages = re.search(r"apt-get install (.*?)\nrm", (RECIPES / "install.sh").read_text(), re.S)
    assert {"ibverbs-providers", "libibverbs1", "librdmacm1"} <= set(packages[1].split())


def test_apex_is_nvidias_source_at_a_tag():
    text = (RECIPES / "install.sh").read_text()
    assert re.search(r'--branch "\$APEX"\s+\\\n\s+https://github.com/NVIDIA/apex', text)
    assert not re.search(r"install[^\n]*[ \"]apex[=\" \n]", text)


def test_mpi4py_is_built_against_the_images_mpich():
    text = (RECIPES / "install.sh").read_text()
    assert "MPI4PY_BUILD_MPICC=/opt/mpich/bin/mpicc" in text
    assert "--no-binary=mpi4py" in text
