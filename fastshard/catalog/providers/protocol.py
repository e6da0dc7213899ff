"""Base of the stores of an index: rows of entries, labels, schemas, lenses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fastshard._util.json import parse_value
from fastshard.catalog.entry import DatasetEntry
from fastshard.typed.descriptions.versions import latest_version

__all__ = [
    "ChooseVersion",
    "IndexProvider",
    "LabelRow",
    "latest_label",
    "newest_version",
]

# Takes the JSON of all versions of a name. Returns a version and the JSON to store
# under it, or None if that version exists. Pure: it may be called again.
ChooseVersion = Callable[[Mapping[str, str]], tuple[str, str | None]]


class LabelRow(NamedTuple):
    """A label as it is stored.

    Attributes
    ----------
    name : str
    cid : str
        Content identifier of an entry.
    version : str or None
    description : str or None
    created_at : str or None
        When it was last written, where the store says: text that sorts by time
        within one store.

    Examples
    --------
    >>> from fastshard import typed
    >>> provider = typed.create_provider("sqlite", path="index.db")
    >>> provider.store_label("best", "bafyreione", "1.9.0", "of May")
    >>> [row.description for row in provider.iter_label_rows("best")]
    ['of May']
    """

    name: str
    cid: str
    version: str | None
    description: str | None = None
    created_at: str | None = None


class IndexProvider(ABC):
    """Store of an index: entries, labels, schemas and lenses as rows.

    The rules of names and versions are the index's; a store has rows. Stores of one's
    own derive from this class. Threads may share one.

    Examples
    --------
    >>> from fastshard import typed
    >>> provider = typed.create_provider("sqlite", path="index.db")
    >>> provider.store_label("train", "bafyreidataset", "1.0.0")
    >>> provider.get_label("train")
    ('bafyreidataset', '1.0.0')
    """

    @property
    def location(self) -> str:
        """Where the store is, for messages: a path, or a URL without credentials.

        Examples
        --------
        >>> typed.create_provider("redis", host="127.0.0.1", password="x").location
        'redis://127.0.0.1:6379/0'
        """
        return type(self).__name__

    # Entries

    @abstractmethod
    def store_entry(self, entry: DatasetEntry) -> None:
        """Store an entry, in place of one with its CID.

        Raises
        ------
        TypeError
            The metadata have a value that msgpack has not; the error names it.
        ValueError
            A name or reference is not text that the store can hold.
        OSError
            The store cannot be written.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> entry = typed.DatasetEntry("train", "local://schemas/T@1.0.0", ["a.tar"])
        >>> provider.store_entry(entry)
        >>> provider.get_entry_by_cid(entry.cid) == entry
        True
        """

    @abstractmethod
    def get_entry_by_cid(self, cid: str) -> DatasetEntry:
        """Return the entry with a CID.

        Raises
        ------
        KeyError
            There is none.
        FormatError
            Its row is damaged; the error names the row and the field.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.get_entry_by_cid("bafyreinone")
        Traceback (most recent call last):
        ...
        KeyError: "No entry with cid 'bafyreinone' in index.db"
        """

    @abstractmethod
    def get_entry_by_name(self, name: str) -> DatasetEntry:
        """Return the entry of a name; of several, the last one written.

        Raises
        ------
        KeyError
            There is none.
        FormatError
            Its row is damaged; the error names the row and the field.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> entry = typed.DatasetEntry("train", "local://schemas/T@1.0.0", ["a.tar"])
        >>> provider.store_entry(entry)
        >>> provider.get_entry_by_name("train").data_urls
        ['a.tar']
        """

    @abstractmethod
    def iter_entries(self) -> Iterator[DatasetEntry]:
        """Iterate over all entries.

        Raises
        ------
        FormatError
            A row is damaged; the error names the row and the field.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> [entry.name for entry in provider.iter_entries()]
        []
        """

    def remove_entry(self, cid: str) -> None:
        """Remove the entry with a CID. Its shards and labels stay.

        Raises
        ------
        KeyError
            There is none.
        NotImplementedError
            The store, of a class of one's own, removes nothing.
        OSError
            The store cannot be written.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> entry = typed.DatasetEntry("train", "local://schemas/T@1.0.0", ["a.tar"])
        >>> provider.store_entry(entry)
        >>> provider.remove_entry(entry.cid)
        """
        raise NotImplementedError(f"{self.location} removes no entries")

    # Labels

    @abstractmethod
    def store_label(
        self,
        name: str,
        cid: str,
        version: str | None = None,
        description: str | None = None,
    ) -> None:
        """Store a label, in place of one with its name and version.

        Parameters
        ----------
        name : str
        cid : str
            Of the entry that the label names.
        version : str, optional
        description : str, optional

        Raises
        ------
        ValueError
            An argument is not text that the store can hold.
        OSError
            The store cannot be written.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_label("best", "bafyreione", "1.9.0")
        >>> provider.store_label("best", "bafyreitwo", "1.10.0")
        >>> provider.get_label("best")
        ('bafyreitwo', '1.10.0')
        """

    @abstractmethod
    def get_label(
        self, name: str, version: str | None = None
    ) -> tuple[str, str | None]:
        """Return the target of a label.

        Parameters
        ----------
        name : str
        version : str, optional
            By default the latest: by the order of semantic versions where all are
            such, else the one written last. "" is the label without a version.

        Returns
        -------
        cid : str
        version : str or None

        Raises
        ------
        KeyError
            There is no such label.
        FormatError
            Its row is damaged; the error names the row and the field.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_label("best", "bafyreione", "1.9.0")
        >>> provider.get_label("best", "1.9.0")
        ('bafyreione', '1.9.0')
        """

    @abstractmethod
    def iter_labels(self) -> Iterator[tuple[str, str, str | None]]:
        """Iterate over all labels.

        Returns
        -------
        iterator of (str, str, str or None)
            Name, CID and version of each.

        Raises
        ------
        FormatError
            A row is damaged; the error names the row and the field.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_label("best", "bafyreione")
        >>> list(provider.iter_labels())
        [('best', 'bafyreione', None)]
        """

    def iter_label_rows(self, name: str | None = None) -> Iterator[LabelRow]:
        """Iterate over labels as stored.

        Parameters
        ----------
        name : str, optional
            Only labels of this name; by default all.

        Raises
        ------
        FormatError
            A row is damaged; the error names the row and the field.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_label("best", "bafyreione", description="of May")
        >>> [row.description for row in provider.iter_label_rows("best")]
        ['of May']
        """
        for row in self.iter_labels():
            if name is None or row[0] == name:
                yield LabelRow(*row)

    def remove_label(self, name: str, version: str | None = None) -> None:
        """Remove one label.

        Parameters
        ----------
        name : str
        version : str, optional
            By default the label without a version.

        Raises
        ------
        KeyError
            There is none.
        NotImplementedError
            The store, of a class of one's own, removes nothing.
        OSError
            The store cannot be written.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_label("best", "bafyreione", "1.9.0")
        >>> provider.remove_label("best", "1.9.0")
        >>> provider.get_label("best")
        Traceback (most recent call last):
        ...
        KeyError: "No label 'best' in index.db"
        """
        raise NotImplementedError(f"{self.location} removes no labels")

    # Schemas

    @abstractmethod
    def store_schema(self, name: str, version: str, schema_json: str) -> None:
        """Store a schema, in place of one with its name and version.

        Parameters
        ----------
        name, version : str
        schema_json : str

        Raises
        ------
        ValueError
            An argument is not text that the store can hold.
        OSError
            The store cannot be written.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_schema("Image", "1.0.0", '{"name": "Image"}')
        >>> provider.get_schema_json("Image", "1.0.0")
        '{"name": "Image"}'
        """

    @abstractmethod
    def get_schema_json(self, name: str, version: str) -> str | None:
        """Return the JSON of a schema.

        Returns
        -------
        str or None
            None if there is no such schema.

        Raises
        ------
        FormatError
            Its row is damaged; the error names the row and the field.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.get_schema_json("Image", "7.0.0") is None
        True
        """

    @abstractmethod
    def iter_schemas(self) -> Iterator[tuple[str, str, str]]:
        """Iterate over all schemas.

        Returns
        -------
        iterator of (str, str, str)
            Name, version and JSON of each.

        Raises
        ------
        FormatError
            A row is damaged; the error names the row and the field.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_schema("Image", "1.0.0", "{}")
        >>> list(provider.iter_schemas())
        [('Image', '1.0.0', '{}')]
        """

    def find_latest_version(self, name: str) -> str | None:
        """Return the latest version of a schema.

        Returns
        -------
        str or None
            None without a schema of this name, or if none has a semantic version.

        Raises
        ------
        FormatError
            A row is damaged; the error names the row and the field.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_schema("Image", "1.9.0", "{}")
        >>> provider.store_schema("Image", "1.10.0", "{}")
        >>> provider.find_latest_version("Image")
        '1.10.0'
        """
        return newest_version(
            version for known, version, _ in self.iter_schemas() if known == name
        )

    def store_schema_version(self, name: str, choose: ChooseVersion) -> str:
        """Store a version of a schema chosen by the existing ones.

        No other process stores a version of the schema in between.

        Parameters
        ----------
        name : str
        choose : callable
            Takes a dict of the JSON of each version. Returns the new version and its
            JSON, or a version that there is and None. It may be called several times.

        Returns
        -------
        str
            The version that `choose` returned.

        Raises
        ------
        ValueError
            The name, version or JSON is not text that the store can hold.
        OSError
            The store cannot be read or written.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_schema_version("Image", lambda known: ("1.0.0", "{}"))
        '1.0.0'
        >>> provider.store_schema_version("Image", lambda known: (max(known), None))
        '1.0.0'
        """
        known = {
            version: text for each, version, text in self.iter_schemas() if each == name
        }
        version, text = choose(known)
        if text is not None:
            self.store_schema(name, version, text)
        return version

    # Lenses

    @abstractmethod
    def store_lens(self, name: str, version: str, lens_json: str) -> None:
        """Store a lens, in place of one with its name and version.

        Parameters
        ----------
        name, version : str
        lens_json : str

        Raises
        ------
        ValueError
            An argument is not text that the store can hold.
        OSError
            The store cannot be written.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_lens("caption", "1.0.0", '{"source_schema": "Image"}')
        >>> provider.get_lens_json("caption", "1.0.0")
        '{"source_schema": "Image"}'
        """

    @abstractmethod
    def get_lens_json(self, name: str, version: str) -> str | None:
        """Return the JSON of a lens.

        Returns
        -------
        str or None
            None if there is no such lens.

        Raises
        ------
        FormatError
            Its row is damaged; the error names the row and the field.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.get_lens_json("caption", "7.0.0") is None
        True
        """

    @abstractmethod
    def iter_lenses(self) -> Iterator[tuple[str, str, str]]:
        """Iterate over all lenses.

        Returns
        -------
        iterator of (str, str, str)
            Name, version and JSON of each.

        Raises
        ------
        FormatError
            A row is damaged; the error names the row and the field.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_lens("caption", "1.0.0", "{}")
        >>> list(provider.iter_lenses())
        [('caption', '1.0.0', '{}')]
        """

    def find_latest_lens_version(self, name: str) -> str | None:
        """Return the latest version of a lens.

        Returns
        -------
        str or None
            None without a lens of this name, or if none has a semantic version.

        Raises
        ------
        FormatError
            A row is damaged; the error names the row and the field.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_lens("caption", "0.1.0", "{}")
        >>> provider.find_latest_lens_version("caption")
        '0.1.0'
        """
        return newest_version(
            version for known, version, _ in self.iter_lenses() if known == name
        )

    def store_lens_version(self, name: str, choose: ChooseVersion) -> str:
        """Store a version of a lens chosen by the existing ones.

        No other process stores a version of the lens in between.

        Parameters
        ----------
        name : str
        choose : callable
            As that of `store_schema_version`.

        Returns
        -------
        str
            The version that `choose` returned.

        Raises
        ------
        ValueError
            The name, version or JSON is not text that the store can hold.
        OSError
            The store cannot be read or written.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_lens_version("caption", lambda known: ("1.0.0", "{}"))
        '1.0.0'
        """
        known = {
            version: text for each, version, text in self.iter_lenses() if each == name
        }
        version, text = choose(known)
        if text is not None:
            self.store_lens(name, version, text)
        return version

    def find_lenses_by_schemas(
        self, source_schema: str, view_schema: str | None = None
    ) -> list[tuple[str, str, str]]:
        """Return the lenses from one schema, or from one to another.

        Lenses with damaged JSON are left out.

        Parameters
        ----------
        source_schema : str
            As lenses have it: the name of a type.
        view_schema : str, optional
            By default any.

        Returns
        -------
        list of (str, str, str)
            Name, version and JSON of each.

        Raises
        ------
        FormatError
            A row is damaged; the error names the row and the field.
        OSError
            The store cannot be read.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.store_lens("caption", "1.0.0", '{"source_schema": "Image"}')
        >>> [name for name, _, _ in provider.find_lenses_by_schemas("Image")]
        ['caption']
        """
        found = []
        for name, version, text in self.iter_lenses():
            lens = _parse_object(text)
            if lens.get("source_schema") == source_schema and (
                view_schema is None or lens.get("view_schema") == view_schema
            ):
                found.append((name, version, text))
        return found

    def close(self) -> None:
        """Close the connections. Calls after it raise `ClosedError`.

        Examples
        --------
        >>> provider = typed.create_provider("sqlite", path="index.db")
        >>> provider.close()
        """
        return

    def __enter__(self) -> IndexProvider:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def latest_label(rows: Iterable[LabelRow]) -> LabelRow | None:
    """Return the latest of a name's labels; the last one written comes first."""
    rows = list(rows)
    latest = latest_version(row.version or "" for row in rows)
    if latest is not None:
        return next(row for row in rows if row.version == latest)
    return rows[0] if rows else None


def newest_version(versions: Iterable[str]) -> str | None:
    """Return the latest semantic version, or None."""
    return latest_version(filter(_is_semantic, versions))


def _is_semantic(version: str) -> bool:
    return latest_version([version]) is not None


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = parse_value(text, "<row>")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
