"""The versions of vLLM that an engine was written against.

`rollout` replaces parts of vLLM that are no public interface, some of them by setting attributes,
which another version may not read: it would then go on with what was to be replaced.
"""

from __future__ import annotations

from verl_hpc.errors import ClusterError

CHECKED_VERSIONS = ("0.32.0",)


def check_version() -> None:
    """Import vLLM alone, and compare its version.

    Raises:
        ClusterError: it is another one.
    """
    import vllm

    # A build adds its device after a plus sign: 0.32.0+cu130.
    if vllm.__version__.partition("+")[0] not in CHECKED_VERSIONS:
        raise ClusterError(
            f"vLLM {vllm.__version__}: this package was checked with "
            f"{', '.join(CHECKED_VERSIONS)}, of which it replaces parts; install that version"
        )
