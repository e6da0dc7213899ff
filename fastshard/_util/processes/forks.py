"""Fork hooks: reset of locks, threads and connections in a forked child.

A child has the objects of its parent, but not its threads. A lock that such a thread
held during the fork stays locked in the child, and connections belong to the parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

__all__ = ["ForkAware", "LockOwner", "at_fork", "list_members"]


class LockOwner:
    """Owner of a `lock`, which is new in a forked child."""

    _new_lock: Callable[[], Any] = staticmethod(threading.Lock)

    def __init__(self, new_lock: Callable[[], Any] = threading.Lock) -> None:
        if new_lock is not threading.Lock:
            self._new_lock = new_lock
        self.lock = new_lock()
        _owners.add(self)

    def renew_lock(self) -> None:
        """Replace the lock in a forked child."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
        else:
            self.reset_after_fork()
        self.lock = self._new_lock()

    def reset_after_fork(self) -> None:
        """Reset state in a forked child: the parent held the lock during the fork."""


class ForkAware:
    """Base of objects with threads or connections, as long as they are alive."""

    def __init__(self) -> None:
        _aware.add(self)

    def before_fork(self) -> None:
        """Prepare for a fork, in the parent."""

    def reset_after_fork(self) -> None:
        """Reset state in a forked child, whose locks are free.

        By default the child does not prepare the object for forks of its own.
        """
        _aware.discard(self)


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
    after_in_child: Callable[[], object] | None = None,
) -> None:
    """Call functions at each fork, on systems that have forks."""
    hooks = {
        "before": before,
        "after_in_parent": after_in_parent,
        "after_in_child": after_in_child,
    }
    if hasattr(os, "register_at_fork"):
        given = {name: hook for name, hook in hooks.items() if hook is not None}
        os.register_at_fork(**given)


_owners: WeakSet[LockOwner] = WeakSet()
_aware: WeakSet[ForkAware] = WeakSet()


def _prepare() -> None:
    _run_all([each.before_fork for each in list_members(_aware)])


def _reset() -> None:
    owners, aware = list_members(_owners), list_members(_aware)
    # Locks first: a reset takes locks.
    _run_all(
        [owner.renew_lock for owner in owners]
        + [each.reset_after_fork for each in aware]
    )


def _run_all(hooks: list[Callable[[], object]]) -> None:
    """Call every hook, then raise the first error, which Python reports."""
    failed: BaseException | None = None
    for hook in hooks:
        try:
            hook()
        except BaseException as error:
            failed = failed or error
    try:
        if failed is not None:
            raise failed
    finally:
        del failed  # its traceback has this frame, and by it the hooks


def list_members(registry: WeakSet[Any]) -> list[Any]:
    """Return the members of a set that other threads modify."""
    while True:
        try:
            return list(registry)
        except RuntimeError:  # another thread added one meanwhile
            continue


at_fork(before=_prepare, after_in_child=_reset)
