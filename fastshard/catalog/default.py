"""The default index of a process."""

from __future__ import annotations

from fastshard._util.processes.forks import LockOwner
from fastshard.catalog.index import Index

__all__ = ["get_default_index", "set_default_index"]

_default: Index | None = None
_lock = LockOwner()


def get_default_index() -> Index:
    """Return the index for calls without one.

    Returns
    -------
    Index
        That of `set_default_index`, else ``Index()``, made at the first call.

    Examples
    --------
    >>> from fastshard import typed
    >>> typed.set_default_index(typed.Index(path="own.db"))
    >>> typed.get_default_index().list_datasets()
    []
    """
    global _default
    with _lock.lock:
        if _default is None:
            _default = Index()
        return _default


def set_default_index(index: Index | None) -> None:
    """Set the index for calls without one.

    Parameters
    ----------
    index : Index or None
        None: a new ``Index()`` is made at the next call of `get_default_index`.

    Raises
    ------
    TypeError
        It is not an index.

    Examples
    --------
    >>> from fastshard import typed
    >>> typed.set_default_index(typed.Index(path="own.db"))
    >>> typed.get_default_index().list_datasets()
    []
    """
    global _default
    if index is not None and not isinstance(index, Index):
        raise TypeError(f"index must be an Index, got {type(index).__name__}")
    with _lock.lock:
        _default = index
