"""The versions of libraries that this package was written against."""

from __future__ import annotations

from verl_hpc.errors import ClusterError


def check_version(library: str, here: str, checked: str) -> None:
    """Compare the version of a library of which parts are replaced that are no public interface.

    Another version may not read an attribute that is set, and go on with what was to be replaced.

    Args:
        library: its name.
        here: the version that is installed.
        checked: the version that this package was written against.

    Raises:
        ClusterError: they differ.
    """
    # A build adds its device after a plus sign: 0.32.0+cu130.
    if here.partition("+")[0] != checked:
        raise ClusterError(
            f"{library} {here}: this package was checked with {checked}, of which it replaces "
            "parts; install that version"
        )
