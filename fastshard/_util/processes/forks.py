"""Locks that are free in a forked child."""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["LockOwner"]

_all_locked: weakref.WeakSet[LockOwner] = weakref.WeakSet()


class LockOwner:
    """Owner of a lock that is free in a forked child.

    Attributes
    ----------
    lock : threading.Lock
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        _all_locked.add(self)

    def reset_after_fork(self) -> None:
        """Reset state in a forked child: the parent held the lock during the fork."""


def _free_locks() -> None:
    for one in list(_all_locked):
        if one.lock.locked():
            one.reset_after_fork()
        one.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)
