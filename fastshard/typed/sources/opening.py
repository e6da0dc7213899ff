"""Opening of sources as datasets of fields."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack, cast

from fastshard._util.paths.remote_options import RemoteOptions
from fastshard._util.paths.urls import scheme_of
from fastshard.dataset.dataset import Dataset
from fastshard.dataset.open import open as open_fields
from fastshard.dataset.paths.listing import Location, Source
from fastshard.dataset.tarset import TarSet, require_tars
from fastshard.formats.registry import scheme_format
from fastshard.typed.sources.files import SourceLocation
from fastshard.typed.sources.listed import ListedSource
from fastshard.typed.sources.protocol import DataSource
from fastshard.typed.sources.url import URLSource

__all__ = ["as_source", "open_source", "source_of_paths"]


def as_source(source: object) -> DataSource:
    """Return a path, a URL or a list of them as a source; a source unchanged."""
    if isinstance(source, str | os.PathLike | Sequence):
        return source_of_paths(cast(Source, source))
    if isinstance(source, DataSource):
        return source
    raise TypeError(
        "a source must be a path, a URL, a sequence of them, or have list_shards, "
        f"open_shard and shards, got {type(source).__name__}"
    )


def source_of_paths(source: Source, **options: Unpack[RemoteOptions]) -> ListedSource:
    """Return the source of paths and URLs; a format may have its own for a scheme."""
    items = [source] if isinstance(source, str | os.PathLike) else source
    scheme = scheme_of(os.fspath(items[0])) if items else ""
    own = scheme_format(scheme) if scheme else None
    if own is not None:
        return cast(
            ListedSource, own.source([os.fspath(each) for each in items], **options)
        )
    return URLSource(source, **options)


def open_source(source: object, **options: Any) -> Dataset[Any]:
    """Open the packed samples of a source."""
    source = as_source(source)
    if isinstance(source, ListedSource):
        location = source.location
        given: dict[str, Any] = dict(source.options)
        store = {**given.pop("store", {}), **(options.pop("store", None) or {})}
        options = {**given, **options, **({"store": store} if store else {})}
        if source.set_type is not None:
            return _open_as(source.set_type, location, options)
        return open_fields(cast(Source, location), packed=True, **options)
    from fastshard.typed.sources.stream import SourceSet

    return _open_as(SourceSet, SourceLocation(source), options)


def _open_as(
    kind: type[TarSet], location: Location, options: Mapping[str, Any]
) -> Dataset[Any]:
    """Open shards as a set of a type, without looking for indexes beside them."""
    given = {"index": "none", **options}
    ds = open_fields(cast(Source, location), packed=True, **given)
    return ds._replace(shards=require_tars(ds._set).copy(kind))
