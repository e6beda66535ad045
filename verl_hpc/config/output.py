"""Settings of checkpoints, profiles and the runtime."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from verl_hpc.section import NonNegative, Positive, PositiveFinite, Seconds, Section


class CheckpointConfig(Section):
    """HDF5 step directories below the run directory."""

    every: NonNegative = 0
    """Steps between saves; 0 saves only at the end."""
    keep: Positive = 2
    """Newest complete steps that are kept."""
    background: bool = True
    """Write from a copy in host memory while training continues; false waits for the disk, and
    takes no copy. A run that ends or leaves waits either way."""
    resume: Literal["auto", "never", "must", "force"] = "auto"
    """auto continues from the newest trustworthy step if there is one, must only if there is one.
    Both refuse another recipe, seed, training data set or KL reference than the run's so far;
    force accepts them but for the recipe, as must, and reads new data from their beginning."""
    on_write_failure: Literal["stop", "continue"] = "stop"
    """Effect of a failed save, such as on a full disk; earlier steps stay either way."""


class ProfileConfig(Section):
    """Traces of torch.profiler, in profiles/ of the run directory (docs/observability.md)."""

    steps: Annotated[list[Positive], Field(min_length=1, max_length=100)]
    """Steps that are traced, each in a file of its own; one that the run does not reach is not."""
    ranks: Annotated[list[NonNegative], Field(min_length=1)] = [0]
    """Ranks that trace; a rank that the job has not is an error."""
    memory: bool = False
    """Also trace allocations: on GPUs also a snapshot for PyTorch's memory viewer; on CPU ranks,
    for which there are no snapshots, the trace has those of PyTorch's allocator on the CPU."""

    @model_validator(mode="after")
    def _says_each_once(self) -> ProfileConfig:
        for name in ("steps", "ranks"):
            values = getattr(self, name)
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"{name}: has {twice[0]} twice; once is enough")
        return self


class RuntimeConfig(Section):
    """Devices, time limits, threads and failures."""

    device: Literal["auto", "cpu"] = "auto"
    """auto takes each rank's GPU, and ends a run that was promised GPUs (by Slurm, by the site
    profile or by CUDA_VISIBLE_DEVICES) and cannot use them; cpu computes on cores whatever there
    is."""
    collective_timeout_s: Annotated[Seconds, Field(ge=1.0)] = 1800.0
    """A collective that takes longer ends the job."""
    late_after_s: Seconds = 120.0
    """A rank that is this far behind the first is reported, with the operator it is in."""
    threads_per_rank: Annotated[Positive, Field(le=4096)] | None = None
    """CPU threads of a rank, at most the node's cores; null takes the cores it may run on, shared
    with the ranks that have the same."""
    reward_processes: Annotated[NonNegative, Field(le=256)] | None = None
    """Processes of a rank that call reward functions while it generates (docs/rewards.md); 0 calls
    them in the rank, afterwards. null takes one for each four of the rank's threads, at most 8."""
    max_gpu_hours: PositiveFinite | None = None
    """GPU-hours that all starts of the run may use together: the run saves and stops for good
    before a step that would pass them (docs/budget.md). GPUs that the job has and no rank uses
    count; on CPU ranks these are rank-hours. null sets no ceiling."""
    post_mortem: bool = False
    """A rank that fails leaves the variables of its calls in post_mortem/ of the run directory, and
    a run of one rank at a terminal opens pdb. Secrets are left out by name; texts are not."""
    profile: ProfileConfig | None = None
    """Trace some steps of some ranks; null traces none."""
