"""What a run leaves behind, and how long it waits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from verl_hpc.section import NonNegative, Positive, Seconds, Section


class CheckpointConfig(Section):
    """HDF5 step directories below the run directory."""

    every: NonNegative = 0
    """Steps between saves; 0 saves only at the end."""
    keep: Positive = 2
    """Newest complete steps that are kept."""
    background: bool = True
    """Write from a copy in host memory while the run goes on; false waits for the disk, and takes
    no copy. A run that ends or leaves waits either way."""
    resume: Literal["auto", "never", "must", "force"] = "auto"
    """auto continues from the newest trustworthy step if there is one, must only if there is one.
    Both refuse another recipe, seed, training data set or KL reference than the run's so far;
    force accepts them but for the recipe, as must, and reads new data from their beginning."""
    on_write_failure: Literal["stop", "continue"] = "stop"
    """What a failed save (a full disk, say) does; earlier steps stay either way."""


class MetricsConfig(Section):
    """Sinks besides metrics.jsonl, which is always written."""

    terminal: Literal["auto", "live", "lines", "off"] = "auto"
    """auto is live on a terminal and lines elsewhere."""
    tensorboard: bool = False
    """Event files for TensorBoard, in tensorboard/ of the run directory."""
    report: bool = True
    """report.html and PNG curves at the end."""


class RuntimeConfig(Section):
    """Waiting, threads and failing."""

    collective_timeout_s: Annotated[Seconds, Field(ge=1.0)] = 1800.0
    """A collective that takes longer ends the job."""
    late_after_s: Seconds = 120.0
    """A rank that is this far behind the first is reported, with what it is in."""
    threads_per_rank: Annotated[Positive, Field(le=4096)] | None = None
    """CPU threads of a rank, at most the node's cores; null takes the cores it may run on, shared
    with the ranks that have the same."""
    reward_processes: Annotated[NonNegative, Field(le=256)] | None = None
    """Processes of a rank that call reward functions while it generates (docs/rewards.md); 0 calls
    them in the rank, afterwards. null takes one for each four of the rank's threads, at most 8."""
    post_mortem: bool = False
    """A rank that fails leaves the variables of its calls in post_mortem/ of the run directory, and
    a run of one rank at a terminal opens pdb. Secrets are left out by name; texts are not."""
