"""Make a planner from options and files: configuration, hardware, models, work and factors."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_hpc.cluster.checks import read_models
from verl_hpc.cluster.hardware import hardware_of
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.models import model_files
from verl_hpc.cluster.profile import PREFIX, Profile, load_profile, parse_site_override
from verl_hpc.cluster.request import Request
from verl_hpc.config.load import load_config
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.planner.plan import Planner
from verl_hpc.planner.search.searched_settings import refuse_searched
from verl_hpc.planner.timing.efficiency_file import read_efficiency
from verl_hpc.planner.timing.lengths import Lengths
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.workload import (
    MEAN_PROMPT_SHARE,
    MEAN_RESPONSE_SHARE,
    Workload,
    workload_of,
)
from verl_hpc.sources.local import SIZES, shipped_sentence


def planner_of(arguments: argparse.Namespace) -> Planner:
    """Raises: VerlHpcError: options or files are missing, wrong, or contradict each other."""
    profile, config, words = profile_and_config(arguments)
    if arguments.search:
        refuse_searched(config, words, "--search")
    hardware = hardware_of(profile.site, measured=arguments.measured)
    machine = Machine(hardware, read_efficiency(arguments.efficiency, hardware.kind))
    files = _model_files(config, profile, arguments.model_config or ())
    archs = read_models(config, files)
    work = work_of(config, arguments.prompt, arguments.response)
    basis = machine.efficiency.basis.of_run(config.rollout.staleness, archs.values()).sentence
    shipped = _shipped(config, files, arguments.model_config or ())
    known = (*shipped, *assumed(config, arguments), basis, *hardware.assumptions)
    return Planner(config, archs, machine, work, known)


def profile_and_config(arguments: argparse.Namespace) -> tuple[Profile, RunConfig, list[str]]:
    """Return the site profile and the configuration, and the words that change the latter."""
    ours = [word for word in arguments.words if word.startswith(PREFIX)]
    words = [word for word in arguments.words if not word.startswith(PREFIX)]
    profile = load_profile(arguments.cluster, map(parse_site_override, ours))
    return profile, load_config(arguments.config, words), words


def work_of(config: RunConfig, prompt: float | None, response: float | None) -> Workload:
    """Return the work of a step, with means that the user gives.

    Raises:
        ConfigError: a mean is more than the configuration allows.
    """
    rollout = config.rollout
    longest = rollout.max_response_tokens
    for option, value, most in (
        ("prompt", prompt, rollout.max_prompt_tokens),
        ("response", response, longest),
    ):
        if value is not None and value > most:
            raise ConfigError(
                f"--{option} {value:g}: the longest is rollout.max_{option}_tokens = {most}; give "
                "a mean below it, or set that"
            )
    lengths = None if response is None else Lengths(response, longest)
    return workload_of(config, prompt, lengths)


def assumed(config: RunConfig, arguments: argparse.Namespace) -> list[str]:
    """Return sentences about assumptions on the work."""
    rollout, sentences = config.rollout, []
    if arguments.prompt is None:
        mean = MEAN_PROMPT_SHARE * rollout.max_prompt_tokens
        sentences.append(f"A mean prompt has {mean:.0f} tokens, half of the longest (--prompt).")
    if arguments.response is None:
        mean = MEAN_RESPONSE_SHARE * rollout.max_response_tokens
        sentences.append(
            f"A mean response has {mean:.0f} tokens, half of the longest (--response)."
        )
    return sentences


def architectures(
    config: RunConfig, profile: Profile, given: Sequence[str] = ()
) -> dict[str, Architecture]:
    """Return the architecture of every role, from given files, those at the models' paths, or those
    that are shipped.

    Args:
        given: words FILE, for the roles with the model of model.path, or ROLE=FILE.

    Raises:
        ConfigError: a role does not exist, or has no config.json.
        ModelError: a file that cannot be read, or of a family that is not mapped.
    """
    return read_models(config, _model_files(config, profile, given))


def _model_files(config: RunConfig, profile: Profile, words: Sequence[str]) -> dict[str, Path]:
    job = plan_job(Request(config, "", (), profile, 1, "1:00:00", Path.cwd()))
    return model_files(job, _given(config, words))


def _shipped(config: RunConfig, files: Mapping[str, Path], words: Sequence[str]) -> list[str]:
    """Return a sentence for each model whose sizes are shipped ones that nobody has given."""
    given = set(_given(config, words).values())
    settings = {}
    for name, file in files.items():
        path = config.role_settings[name].model.path
        if file.parent == SIZES and file not in given:
            own = path != config.model.path
            settings[f"roles.{name}.path" if own else "model.path"] = (path, file)
    return [shipped_sentence(setting, *about) for setting, about in settings.items()]


def _given(config: RunConfig, words: Sequence[str]) -> Mapping[str, Path]:
    """Return files by role; the empty name has that of all other roles."""
    files: dict[str, Path] = {}
    for word in words:
        role, separator, file = word.partition("=")
        if not separator:
            role, file = "", word
        if role and role not in config.role_settings:
            roles = ", ".join(config.role_settings)
            raise ConfigError(f"--model-config {word}: no role {role}; this run has {roles}")
        if role in files:
            raise ConfigError(f"--model-config {word}: given twice; one file for each role")
        files[role] = Path(file)
    return files
