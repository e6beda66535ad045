"""The GPUs of a site's nodes: a kind by its name, or one by the site's own figures."""

from __future__ import annotations

from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import GpuKind, flops, gpu_kind
from verl_hpc.section import NonNegativeFinite, PositiveFinite, Section


class GpuFigures(Section):
    """A GPU that is none of the kinds that are known, by its data sheet."""

    memory_gib: PositiveFinite
    """Memory that a process on a bare GPU can have, in GiB: `torch.cuda.mem_get_info`."""
    bfloat16_tflops: PositiveFinite
    """Peak of dense matrix products, in 10^12 operations a second."""
    float32_tflops: PositiveFinite | None = None
    """Peak of float32 products without TF32; null is an eighth of bfloat16's."""
    float8_tflops: PositiveFinite | None = None
    """Peak of FP8 products; null is a GPU without FP8, which computes in bfloat16."""
    hbm_gb_s: PositiveFinite
    """Bandwidth of the GPU's memory, in GB/s."""
    nvlink_gb_s: NonNegativeFinite = 0.0
    """To the other GPUs of a node together, each way, in GB/s; 0 without NVLink or its like."""
    pcie_gb_s: PositiveFinite = 32.0
    """To host memory, each way, in GB/s; PCIe 4 with 16 lanes has 32, PCIe 5 64."""

    def kind(self, name: str) -> GpuKind:
        """Return the kind of GPU that the planner takes."""
        bfloat16 = self.bfloat16_tflops
        float32 = self.float32_tflops or bfloat16 / 8
        return GpuKind(
            name,
            self.memory_gib,
            flops(bfloat16, float32, self.float8_tflops),
            self.hbm_gb_s,
            self.nvlink_gb_s,
            self.pcie_gb_s,
            "gpu_figures of the site profile",
            name,
        )


def kind_of(gpu: str, figures: GpuFigures | None) -> GpuKind:
    """Return the kind of GPU that a profile names.

    Raises:
        ConfigError: a kind that is not known, without figures, or one that is, with them.
    """
    if figures is None:
        return gpu_kind(gpu)
    try:
        known = gpu_kind(gpu)
    except ConfigError:
        return figures.kind(gpu)
    raise ConfigError(
        f"gpu_figures with gpu = {gpu}: figures of {known.name} are known; leave them out, or "
        "choose another name"
    )
