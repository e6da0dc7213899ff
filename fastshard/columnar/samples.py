"""Samples of a columnar dataset: rows of the index whose fields are arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fastshard._core.columnar.index_rows import read_image, read_rows
from fastshard._core.columnar.rows import ColumnSamples
from fastshard._core.dataset.shard import describe_item
from fastshard.columnar.layout.headers import needs_pickle
from fastshard.columnar.layout.shard_files import ColumnFiles
from fastshard.errors import FastshardError, FormatError, key_collision
from fastshard.formats.decoders import DECODERS, Decoder, decoder_for
from fastshard.formats.info import Infos
from fastshard.formats.sample import CopiedSample, Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastshard.formats.layout import Allocate

__all__ = [
    "ColumnSample",
    "CopiedArrays",
    "Owner",
    "Unpickle",
    "build_samples",
    "build_samples_from_image",
]

Unpickle: TypeAlias = Callable[[bytes, FormatError], Any]  # (member, why it is refused)


class Owner(Protocol):
    """State of a dataset that samples belong to.

    Attributes
    ----------
    path : str
        The index, for error messages.
    closed : bool
    files : ColumnFiles
    packed : dict of str to bool
        Fields that may have packs, and whether the stored rows have identities.
    unpickle : callable or None
        As for `Rows`.
    """

    path: str
    closed: bool
    files: ColumnFiles
    packed: dict[str, bool]
    unpickle: Unpickle | None

    def metadata(self, sample_id: str, text: str | None) -> Any:
        """Return a sample's metadata, parsed from `text` or else from the index."""


def build_samples(
    chunks: Iterable[list[tuple[Any, ...]]], owner: Owner
) -> ColumnSamples:
    """Build a table of samples from rows of an index.

    Parameters
    ----------
    chunks : iterable of list of tuple
        ``(id, offset, shard, offset, shard, ...)``, in the order of the fields, then
        the rows in packs of the fields that may have packs.
    owner : Owner
        Referenced by the samples.

    Raises
    ------
    FormatError
        An id is not text. A fault of a field is raised when the field is read.
    """
    files = owner.files
    columns, names = read_rows(
        chunks, list(files.folders), files.opener, owner.path, owner.packed
    )
    for rows in columns:
        rows.unpickle = owner.unpickle
    return ColumnSamples(columns, names, ColumnSample, owner)


def build_samples_from_image(
    image: bytes, root: int, column_numbers: list[int], owner: Owner, max_bytes: int
) -> ColumnSamples | None:
    """Build a table of samples, with their metadata, from the bytes of an index.

    Parameters
    ----------
    image, root
        As for `read_image`.
    column_numbers : list of int
        Column numbers in a stored row: of the id, the metadata, each field's offset
        and shard, and the rows in packs of the fields that may have packs.
    max_bytes : int
        Maximum size of the table of rows, in bytes.
    owner : Owner
        Referenced by the samples.

    Returns
    -------
    ColumnSamples or None
        None: read the rows by SQL.
    """
    files = owner.files
    fields = list(files.folders)
    found = read_image(
        image,
        root,
        column_numbers,
        fields,
        files.opener,
        owner.path,
        max_bytes,
        owner.packed,
    )
    if found is None:
        return None
    for rows in found[0]:
        rows.unpickle = owner.unpickle
    return ColumnSamples(*found, ColumnSample, owner, has_metadata=True)


class ArrayFields:
    """Mixin of samples whose fields are arrays, whatever the fields' names."""

    __slots__ = ()

    decoders: Any
    keys: Any

    def decode(self, *fields: str) -> dict[str, Any]:
        """Return decoded fields by name, and the key as ``"__key__"``.

        Parameters
        ----------
        *fields : str
            Fields to decode; by default all.

        Returns
        -------
        dict
            Arrays, or what the user's decoders return.

        Raises
        ------
        FastshardError
            A field is named ``"__key__"``, as the key in the result is.
        FieldNotFoundError
            The sample has no such field.
        FormatError
            A field is not an array.

        Examples
        --------
        >>> ds[1].decode("target")
        {'__key__': 'sample_000000000002', 'target': array([1., 1.])}
        """
        if "__key__" in (fields or self.keys()):
            raise key_collision()
        decoded: dict[str, Any] = super().decode(*fields)  # type: ignore[misc]
        return decoded

    def decoder_of(self, field: str) -> Decoder | None:
        """Return the user's decoder of a field, by default the decoder of ``.npy``.

        Parameters
        ----------
        field : str
            The field's name, with or without a suffix.

        Returns
        -------
        callable
            It takes the stored bytes as a memoryview.

        Examples
        --------
        >>> ds[1].decoder_of("target")(ds[1].view("target"))
        array([1., 1.])
        """
        own = decoder_for(field, self.decoders)
        if own is None or any(own is one for one in DECODERS.values()):
            return DECODERS["npy"]
        return own


class MetadataDecoder:
    """Decoder of a metadata column, whose values have no stored bytes.

    Parameters
    ----------
    kind : str
        Of the values, for `FieldInfo`.
    """

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, view: memoryview) -> Any:
        raise FastshardError("the values of a metadata column have no stored bytes")


class ColumnSample(ArrayFields, Sample):
    """Sample of a columnar dataset, whose fields are arrays.

    ``sample["history"]`` is an array on the shard's memory, read-only unless the
    dataset has ``mode="private"``; `view` returns the stored bytes, an ``.npy`` file.
    Otherwise it is a `fastshard.Sample`.

    Metadata columns, those of `ShardedDatasetWriter.add_metadata_column`, have their
    values by name: ``sample["length"]``. `keys`, iteration and batches contain those
    only that ``ds.select_fields("history", "length")`` names. A sample whose column is
    NULL lacks it.

    Examples
    --------
    >>> import fastshard
    >>> sample = fastshard.open("series")[2]
    >>> sample.key, sample["history"], sample.metadata
    ('sample_000000000003', array([2, 2, 2, 2]), {'day': 2})
    """

    __slots__ = ()

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the sample, parsed anew at each access.

        Returns
        -------
        dict
            As the writer stored it; ``{}`` if there is none.

        Raises
        ------
        FormatError
            The metadata is not JSON.
        ClosedError
            The dataset is closed.

        Examples
        --------
        >>> ds[1].metadata
        {'day': 1}
        """
        samples: Any = self.samples
        text = None
        if samples.has_metadata:
            text = samples.metadata_text(self.position)
        found: dict[str, Any] = samples.owner.metadata(self.key, text)
        return found

    def __getitem__(self, field: str) -> Any:
        """Return a field as an array.

        Parameters
        ----------
        field : str
            The field's name.

        Returns
        -------
        ndarray
            On the shard's memory, valid for as long as it is referenced.

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.
        FormatError, OSError, ClosedError
            The array cannot be read.

        Examples
        --------
        >>> ds[1]["history"]
        array([1, 1, 1, 1])
        """
        try:
            return self.array(field)
        except FormatError as error:
            samples: Any = self.samples
            if samples.owner.unpickle is None or not needs_pickle(error.reason):
                raise
            column = samples.columns_of([field])
            return samples.arrays(self.position, column)[field]  # unpickles it
        except FastshardError:
            samples = self.samples
            values = samples.values_of(field)
            if values is None or field not in self:
                raise
            return values[self.position]

    def decoder_of(self, field: str) -> Decoder | None:
        samples: Any = self.samples
        if samples.values_of(field) is None:
            return super().decoder_of(field)
        return MetadataDecoder(samples.metadata.kind(field))

    def _decode_field(self, field: str) -> Any:
        if self._is_stored(field):
            return super()._decode_field(field)
        return self[field]

    @staticmethod
    def _stack_fields(
        samples: list[Any],
        fields: tuple[str, ...],
        allocate: Allocate,
    ) -> dict[str, NDArray[Any]]:
        from fastshard._core.columnar.batch import stack_samples
        from fastshard.columnar.read.batch import stack_equal

        return stack_samples(samples, fields, allocate, stack_equal)

    @staticmethod
    def _decode_columns(
        samples: list[Any], fields: tuple[str, ...]
    ) -> dict[str, list[Any]]:
        """Return the values of metadata columns."""
        found: dict[str, list[Any]] = {}
        for name in fields:
            if samples[0].samples.values_of(name) is None:
                continue
            values: list[Any] = []
            for each in samples:
                column = each.samples.values_of(name)
                values.append(each[name] if column is None else column[each.position])
            found[name] = values
        return found

    def _is_stored(self, field: str) -> bool:
        samples: Any = self.samples
        return samples.values_of(field) is None

    def _where(self, field: str) -> tuple[str, int, str]:
        if self._is_stored(field):
            return super()._where(field)
        samples: Any = self.samples
        return samples.owner.path, 0, f"{self.key}.{field}"

    def infos(self) -> Mapping[str, dict[str, Any]]:
        """Return the metadata as the one entry of `Sample.infos`.

        Returns
        -------
        Mapping of str to dict
            ``{"metadata": ...}``; ``ds.filter`` hands it to its function as ``info``.

        Examples
        --------
        >>> ds[1].infos()["metadata"]
        {'day': 1}
        """
        return Infos(
            describe_item(self)[0],
            {"metadata": lambda: self.metadata},
            "the metadata",
            "a writer stores it by add_sample(arrays, metadata={...})",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        names = self.keys()
        stored = {
            name: bytes(self.view(name)) for name in names if self._is_stored(name)
        }
        parts = (self.key, self.position, stored, self.metadata)
        if len(stored) == len(names):
            return CopiedArrays, parts
        values = {name: self[name] for name in names if name not in stored}
        return CopiedArrays, (*parts, values, names)


class CopiedArrays(ArrayFields, CopiedSample):
    """Sample of arrays with bytes of its own: the unpickled form of `ColumnSample`."""

    __slots__ = ("_names", "_values", "metadata")

    def __init__(
        self,
        key: str,
        position: int,
        fields: dict[str, bytes],
        metadata: dict[str, Any],
        values: dict[str, Any] | None = None,
        names: list[str] | None = None,
    ) -> None:
        super().__init__(key, position, fields)
        self.metadata = metadata
        self._values = values or {}  # of metadata columns
        self._names = list(fields) if names is None else names

    def keys(self) -> list[str]:
        return list(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, field: object) -> bool:
        return field in self._names

    def __getitem__(self, field: str) -> Any:
        return self._values[field] if field in self._values else self.array(field)

    def decoder_of(self, field: str) -> Decoder | None:
        if field in self._values:
            return MetadataDecoder("object")
        return super().decoder_of(field)

    def _decode_field(self, field: str) -> Any:
        if field in self._values:
            return self._values[field]
        return super()._decode_field(field)

    def _is_stored(self, field: str) -> bool:
        return field not in self._values

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedArrays, (
            self.key,
            self.position,
            self._fields,
            self.metadata,
            self._values,
            self._names,
        )
