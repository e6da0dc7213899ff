"""Search for datasets in repositories of an index and on the network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fastshard.atmosphere.at_uri import AtUri

if TYPE_CHECKING:
    from fastshard.atmosphere.client import Atmosphere

__all__ = ["ATMOSPHERE", "Query", "SearchResult", "SearchResults", "merge"]

ATMOSPHERE = "atmosphere"  # source of the network's results


class FoundEntry(Protocol):
    """An entry in a search."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def cid(self) -> str:
        """The content identifier."""

    @property
    def schema_ref(self) -> str:
        """The reference of the schema."""

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """May have "tags" and "description"."""


@dataclass
class SearchResult:
    """A dataset that a search found.

    Attributes
    ----------
    uri : str
        CID of an entry of a repository; ``at://`` URI of a record.
    name : str
    description : str or None
    tags : list of str
    schema_ref : str or None
    source : str
        The repository, ``"local"`` or another; ``"atmosphere"`` for the network.
    score : float or None
        Relevance, where a server says one.
    record : dict or None
        As a server answered it.

    Examples
    --------
    >>> from fastshard import typed
    >>> typed.SearchResult("bafyrei...", "train", source="local").tags
    []
    """

    uri: str
    name: str
    description: str | None = None
    tags: list[str] = field(default_factory=list)
    schema_ref: str | None = None
    source: str = "unknown"
    score: float | None = None
    record: dict[str, Any] | None = None


@dataclass
class SearchResults:
    """The datasets that a search found.

    Attributes
    ----------
    items : list of SearchResult
        Those with a score first, then by name.
    cursor : None
        Results have one page.
    total_hint : int
        How many were found, more than `items` if there was a limit.
    source : str
        ``"aggregated"``.
    failed : dict of str to str
        The sources that could not be asked, and why.

    Examples
    --------
    >>> from fastshard import typed
    >>> found = typed.SearchResult("bafyrei...", "train", source="local")
    >>> [each.name for each in typed.SearchResults([found])]
    ['train']
    """

    items: list[SearchResult] = field(default_factory=list)
    cursor: str | None = None
    total_hint: int | None = None
    source: str = "aggregated"
    failed: dict[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[SearchResult]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class Query(NamedTuple):
    """Conditions of a search; an entry must meet all of them.

    Attributes
    ----------
    text : str or None
        Part of a name, in any case.
    tags : frozenset of str or None
        All of them are among the tags of an entry.
    schema_ref : str or None
    """

    text: str | None = None
    tags: frozenset[str] | None = None
    schema_ref: str | None = None

    def search(
        self, entries: Iterable[FoundEntry], source: str
    ) -> Iterator[SearchResult]:
        """Yield the results among entries."""
        text = None if self.text is None else self.text.casefold()
        for entry in entries:
            if text is not None and text not in entry.name.casefold():
                continue
            if self.schema_ref is not None and entry.schema_ref != self.schema_ref:
                continue
            found = result_of(entry, source)
            if self.tags is None or self.tags <= set(found.tags):
                yield found


def result_of(entry: FoundEntry, source: str) -> SearchResult:
    """Return an entry as a result; ignore metadata of other types."""
    metadata = entry.metadata or {}
    description, tags = metadata.get("description"), metadata.get("tags")
    return SearchResult(
        entry.cid,
        entry.name,
        description if isinstance(description, str) else None,
        texts_of(tags),
        entry.schema_ref,
        source,
    )


def search_network(
    client: Atmosphere, query: Query, repo: str | None, limit: int
) -> list[SearchResult]:
    """Return the datasets found by a client's AppView."""
    found = client.search_datasets(
        query.text or "",
        tags=None if query.tags is None else sorted(query.tags),
        schema_ref=query.schema_ref,
        repo=None if repo is None else client.resolve_did(repo),
        limit=max(1, min(limit, 100)),
    )
    return [result_of_record(record) for record in found[:limit] if is_named(record)]


def is_named(record: dict[str, Any]) -> bool:
    """Return whether a server's result has a name and the address of a record."""
    if not isinstance(record.get("name"), str):
        return False
    try:
        AtUri.parse(record.get("uri", ""))
    except (TypeError, ValueError):  # a path, or another URL
        return False
    return True


def result_of_record(record: dict[str, Any]) -> SearchResult:
    """Return a record as a result; ignore fields of other types."""
    description, schema_ref = record.get("description"), record.get("schemaRef")
    return SearchResult(
        record["uri"],
        record["name"],
        description if isinstance(description, str) else None,
        texts_of(record.get("tags")),
        schema_ref if isinstance(schema_ref, str) else None,
        ATMOSPHERE,
        record=record,
    )


def texts_of(values: object) -> list[str]:
    """Return the str of a list; of another object none."""
    if not isinstance(values, list):
        return []
    return [value for value in values if isinstance(value, str)]


def merge(
    found: Iterable[SearchResult], limit: int, failed: dict[str, str]
) -> SearchResults:
    """Return the results of several sources in order, each dataset of one once."""
    once: dict[tuple[str, str], SearchResult] = {}
    for result in found:
        once.setdefault((result.source, result.uri), result)
    ordered = sorted(
        once.values(),
        key=lambda result: (result.score is None, -(result.score or 0), result.name),
    )
    return SearchResults(ordered[:limit], None, len(ordered), failed=failed)
