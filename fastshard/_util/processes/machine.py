"""Identity of this machine."""

from __future__ import annotations

import functools

__all__ = ["boot_id", "node_name"]

BOOT_ID = "/proc/sys/kernel/random/boot_id"


@functools.lru_cache(1)
def boot_id() -> str:
    """Return the name of the machine's last start; "" where there is none.

    The containers of a machine share it.
    """
    try:
        with open(BOOT_ID) as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return ""


@functools.lru_cache(1)
def node_name() -> str:
    """Return the machine's name in the network; a container has its own."""
    import platform

    return platform.node()
