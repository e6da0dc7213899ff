"""Entries of an index: the shards of a dataset, and their schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload, runtime_checkable

from fastshard._util.paths.urls import redact
from fastshard.atmosphere.cid import generate_cid
from fastshard.typed.checksums import checksums_of

if TYPE_CHECKING:
    from fastshard.typed.dataset import Dataset

__all__ = ["DatasetEntry", "EntryOpener", "IndexEntry"]

T = TypeVar("T")


@runtime_checkable
class IndexEntry(Protocol):
    """An entry of any index: a `DatasetEntry` or an `AtmosphereIndexEntry`.

    Examples
    --------
    >>> from fastshard import typed
    >>> entry = typed.DatasetEntry("train", "local://schemas/Image@1.0.0", ["data.tar"])
    >>> isinstance(entry, typed.IndexEntry)
    True
    """

    @property
    def name(self) -> str:
        """The name."""

    @property
    def schema_ref(self) -> str:
        """The reference of the schema."""

    @property
    def data_urls(self) -> list[str]:
        """Paths or URLs of the shards."""

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """May have "tags" and "description"."""


class EntryOpener(Protocol):
    """Interface of an index to its entries: opens their shards."""

    def open_entry(
        self, entry: Any, sample_type: type[Any] | None, **options: Any
    ) -> Dataset[Any]:
        """Return the dataset of an entry."""


@dataclass(init=False, repr=False)
class DatasetEntry:
    """A dataset under a name: its schema and its shards.

    Parameters
    ----------
    name : str
        The name in its repository.
    schema_ref : str
        Reference of the schema, ``atdata://local/schema/Name@1.0.0``.
    data_urls : iterable of str
        Paths or URLs of the shards; a brace pattern is one of them.
    metadata : dict, optional
        ``metadata["checksums"]`` has the SHA-256 digests of shards by URL.
    cid : str, optional
        Content identifier, by default that of `schema_ref` and `data_urls`: equal for
        entries of other names.
    legacy_uuid : str, optional
        The identifier that old versions of atdata wrote.

    Raises
    ------
    TypeError
        `data_urls` is a str.

    Examples
    --------
    >>> from fastshard import typed
    >>> entry = typed.DatasetEntry(
    ...     "train", "atdata://local/schema/ImageSample@1.0.0", ["data.tar"]
    ... )
    >>> entry.cid
    'bafyrei...'
    >>> entry.open(ImageSample)[7].label
    'label 7'
    """

    name: str
    schema_ref: str
    data_urls: list[str]
    metadata: dict[str, Any] | None
    cid: str
    legacy_uuid: str | None

    def __init__(
        self,
        name: str,
        schema_ref: str,
        data_urls: Iterable[str],
        metadata: dict[str, Any] | None = None,
        cid: str | None = None,
        legacy_uuid: str | None = None,
    ) -> None:
        if isinstance(data_urls, str):  # strings are iterables of letters
            raise TypeError("data_urls must be a list of str, got a str")
        self.name = name
        self.schema_ref = schema_ref
        self.data_urls = list(data_urls)
        self.metadata = metadata
        self.legacy_uuid = legacy_uuid
        self.cid = cid or self._content_cid()
        self._opener: EntryOpener | None = None  # no field: not compared

    def _content_cid(self) -> str:
        return generate_cid(
            {"schema_ref": self.schema_ref, "data_urls": self.data_urls}
        )

    def has_own_cid(self) -> bool:
        """Return whether the CID is that of schema and URLs.

        Examples
        --------
        >>> entry = index.get_dataset("images")
        >>> moved = typed.DatasetEntry("a", entry.schema_ref, ["b.tar"], cid=entry.cid)
        >>> entry.has_own_cid(), moved.has_own_cid()
        (True, False)
        """
        return self.cid == self._content_cid()

    @property
    def checksums(self) -> dict[str, str]:
        """Hexadecimal SHA-256 digests of shards by URL; empty if none are stored."""
        return checksums_of(self.metadata)

    @property
    def wds_url(self) -> str:
        """The first of `data_urls`, or ""; a former name."""
        return self.data_urls[0] if self.data_urls else ""

    @property
    def sample_kind(self) -> str:
        """The same as `schema_ref`; a former name."""
        return self.schema_ref

    @overload
    def open(self, sample_type: type[T], **options: Any) -> Dataset[T]: ...
    @overload
    def open(self, sample_type: None = None, **options: Any) -> Dataset[Any]: ...
    def open(
        self, sample_type: type[Any] | None = None, **options: Any
    ) -> Dataset[Any]:
        """Open the shards of the entry.

        Parameters
        ----------
        sample_type : type, optional
            Class of the samples; by default one made of the schema, which an entry
            that an index returned knows.
        **options
            Options of `Dataset`, and those of `fastshard.open`.

        Returns
        -------
        Dataset
            Nothing is read until a sample is accessed.

        Raises
        ------
        ValueError
            `sample_type` is not given and the entry is not of an index.
        KeyError
            The index has no such schema.

        Examples
        --------
        >>> index.get_dataset("images").open()[7].label
        'label 7'
        """
        if self._opener is not None:
            return self._opener.open_entry(self, sample_type, **options)
        if sample_type is None:
            raise ValueError(
                f"entry {self.name!r} has no index for its schema: give sample_type"
            )
        from fastshard.typed.dataset import Dataset

        return Dataset(self.data_urls, sample_type, **options)

    def _of(self, opener: EntryOpener | None) -> DatasetEntry:
        """Set the opener of the entry and return the entry."""
        self._opener = opener
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return the entry without its index, which may hold a password."""
        return {**self.__dict__, "_opener": None}

    def __repr__(self) -> str:
        urls = [redact(url) for url in self.data_urls]
        return (
            f"DatasetEntry(name={self.name!r}, schema_ref={self.schema_ref!r}, "
            f"data_urls={urls!r}, cid={self.cid!r})"
        )
