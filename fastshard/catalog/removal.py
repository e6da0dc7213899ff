"""Removal of datasets from a store of rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastshard.catalog.providers.protocol import IndexProvider

__all__ = ["remove_dataset"]


def remove_dataset(provider: IndexProvider, name: str) -> bool:
    """Remove the entries of a name, their labels, and the labels of the name."""
    labels = list(provider.iter_labels())
    removed: set[str] = set()
    while (cid := find_cid(provider, name)) is not None and cid not in removed:
        removed.add(cid)
        for each, of_cid, version in labels:
            if of_cid == cid:
                remove_if_present(provider.remove_label, each, version)
        remove_if_present(provider.remove_entry, cid)
    of_name = [version for each, _, version in labels if each == name]
    for version in of_name:
        remove_if_present(provider.remove_label, name, version)
    return bool(removed or of_name)


def find_cid(provider: IndexProvider, name: str) -> str | None:
    """Return the CID of an entry of a name, or None."""
    try:
        return provider.get_entry_by_name(name).cid
    except KeyError:
        return None


def remove_if_present(remove: Callable[..., None], *key: str | None) -> None:
    """Remove a row; pass if another process removed it."""
    with suppress(KeyError):
        remove(*key)
