"""Number of processors that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["count_cpus"]

V2, V1 = "cgroup2", "cgroup"  # file systems
MAX_FILE = 1 << 20  # bytes of a file of the kernel


def count_cpus(root: str = "/") -> int:
    """Return the number of processors that affinity and the cgroup allow."""
    try:
        count = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        count = os.cpu_count() or 1
    quota = read_quota(root)
    return max(1, count if quota is None else min(count, quota))


def read_quota(root: str = "/") -> int | None:
    """Return the processors that the cgroup and those above it allow, rounded up."""
    base = Path(root)
    try:
        mounts = _read(base / "proc/self/mountinfo").splitlines()
        groups = _read(base / "proc/self/cgroup").splitlines()
    except (OSError, ValueError):
        return None
    quotas = []
    for kind, inner, mounted in _list_mounts(mounts):
        path = _group_path(groups, kind)
        if path is None:
            continue
        folder = base / mounted.lstrip("/")
        # Inside a container the mount may show the group itself as its root.
        below = path[len(inner) :] if inner != "/" and path.startswith(inner) else path
        for part in _with_parents(below):
            quotas.append(_quota_of(folder / part, kind))
    known = [quota for quota in quotas if quota is not None]
    return min(known, default=None)


def _list_mounts(lines: list[str]) -> list[tuple[str, str, str]]:
    """Return type, root and mount point of the cgroup mounts that limit processors."""
    found = []
    for line in lines:
        fields, _, rest = line.partition(" - ")
        parts, kinds = fields.split(" "), rest.split(" ")
        if len(parts) < 5 or len(kinds) < 3:
            continue
        if kinds[0] == V2 or (kinds[0] == V1 and "cpu" in kinds[2].split(",")):
            found.append((kinds[0], parts[3], parts[4]))
    return found


def _group_path(lines: list[str], kind: str) -> str | None:
    """Return the path of this process's group in a hierarchy."""
    for line in lines:
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if kind == V2 and number == "0" and not names:
            return path
        if kind == V1 and "cpu" in names.split(","):
            return path
    return None


def _with_parents(path: str) -> list[str]:
    """Return a relative path and those of all folders above it, "" the last."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return ["/".join(parts[:n]) for n in range(len(parts), -1, -1)]


def _quota_of(folder: Path, kind: str) -> int | None:
    """Return the processors that a group allows, or None for no limit."""
    try:
        if kind == V2:
            quota, period = _read(folder / "cpu.max").split()
        else:
            quota = _read(folder / "cpu.cfs_quota_us").strip()
            period = _read(folder / "cpu.cfs_period_us").strip()
        if quota == "max" or int(quota) <= 0 or int(period) <= 0:
            return None
        return max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        return None


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_FILE).decode()
