"""Small sites, runs and submissions."""

from pathlib import Path

import yaml

from verl_hpc.cluster.profile import Profile, load_profile
from verl_hpc.cluster.request import Request
from verl_hpc.config.load import load_config
from verl_hpc.config.run import RunConfig

ROOT = Path(__file__).parents[3]

RUN = {
    "name": "run",
    "recipe": "rl",
    "steps": 3,
    "model": {"path": "model"},
    "rollout": {"num_samples": 4},
    "data": {"train": {"kind": "reasoning_gym", "task": "chain_sum", "size": 10}},
}
SITE = {"name": "here", "gpus_per_node": 4, "cores_per_node": 32}
CPU_SITE = {"name": "here", "gpus_per_node": 0, "tasks_per_node": 2, "cores_per_node": 8}

CONTAINERS = {
    "bare": {"kind": "bare"},
    "pyxis": {"kind": "pyxis", "image": "/images/a.sqsh", "mounts": ["/data:/data:ro"]},
    "apptainer": {"kind": "apptainer", "image": "/images/a.sif", "mounts": ["/data"]},
    "podman": {"kind": "podman", "image": "verl_hpc:1", "mounts": ["/data:/in:ro"]},
    "docker": {"kind": "docker", "image": "verl_hpc:1", "mounts": ["/data:/in:ro"]},
    "shifter": {"kind": "shifter", "image": "docker:me/verl_hpc:1", "mounts": ["/data:/in:ro"]},
    "edf": {"kind": "edf", "image": "/capstor/me/verl_hpc.toml"},
    "bwrap": {"kind": "bwrap", "image": "/rootfs", "mounts": ["/data:/in:ro"]},
}


def write(path: Path, tree: dict) -> Path:
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def profile(directory: Path, overrides: dict | None = None, **fields) -> Profile:
    return load_profile(write(directory / "site.yaml", SITE | fields), (overrides or {}).items())


def run_config(directory: Path, *overrides: str, **fields) -> RunConfig:
    return load_config(write(directory / "run.yaml", RUN | fields), overrides)


def request(
    directory: Path,
    *overrides: str,
    site: Profile | None = None,
    nodes: int = 2,
    time: str = "24:00:00",
    standalone: bool = False,
    run: dict | None = None,
) -> Request:
    """A submission made in `directory`, of the small run on the small site."""
    return Request(
        config=run_config(directory, *overrides, **(run or {})),
        config_path="run.yaml",
        overrides=overrides,
        profile=site or profile(directory),
        nodes=nodes,
        time=time,
        directory=directory,
        standalone=standalone,
    )
