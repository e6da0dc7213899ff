"""The manifest of one shard: a JSON header, and a table of samples."""

from __future__ import annotations

import json
import math
import os
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeGuard

from fastshard._util.json import parse_value
from fastshard.errors import FormatError
from fastshard.typed.manifest.rows import ManifestRows, load_rows, rows_of_frame

if TYPE_CHECKING:
    import pandas

__all__ = ["MANIFEST_FORMAT_VERSION", "ShardManifest"]

MANIFEST_FORMAT_VERSION = "1.0.0"
MAX_HEADER = 256 << 20  # bytes of JSON
NO_DIGEST = "0" * 32
NUMBERS = ("min", "max", "mean")


class ShardManifest:
    """Manifest of one shard.

    Parameters
    ----------
    shard_id : str
        Name of the shard, without ``.tar``.
    schema_type : str
        Name of the samples' class.
    schema_version : str
    num_samples : int
    size_bytes : int
        Bytes of all payloads.
    created_at : datetime
    aggregates : dict of str to dict
        Summaries over the whole shard, by field.
    samples : pandas.DataFrame, optional
        A row for each sample: ``__key__``, ``__offset__``, ``__size__`` and fields.
    provenance : dict, optional

    Examples
    --------
    >>> from fastshard import typed
    >>> ds = typed.write_samples(
    ...     [ImageSample(np.zeros(4, "f4"), "cat")], "new.tar", manifest=True
    ... )
    >>> found = typed.ShardManifest.from_files(
    ...     "new.manifest.json", "new.manifest.parquet"
    ... )
    >>> found.num_samples, found.aggregates["label"]["value_counts"]
    (1, {'cat': 1})
    """

    def __init__(
        self,
        shard_id: str,
        schema_type: str,
        schema_version: str,
        num_samples: int,
        size_bytes: int,
        created_at: datetime,
        aggregates: dict[str, dict[str, Any]],
        samples: pandas.DataFrame | ManifestRows | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        self.shard_id = shard_id
        self.schema_type = schema_type
        self.schema_version = schema_version
        self.num_samples = num_samples
        self.size_bytes = size_bytes
        self.created_at = created_at
        self.aggregates = aggregates
        self.provenance = {} if provenance is None else provenance
        self.extras: dict[str, Any] = {}  # of the header, for this package
        self.digest = ""  # of the header's text, if it states one
        self.nbytes = 0  # of that text
        self._rows: ManifestRows | None = None
        self._frame: pandas.DataFrame | None = None
        self._is_given = False  # whether the frame is the caller's
        self._table = ""  # the Parquet file, until it is read
        if samples is None or isinstance(samples, ManifestRows):
            self._rows = ManifestRows.of({}) if samples is None else samples
        else:
            self._frame, self._is_given = samples, True

    @property
    def rows(self) -> ManifestRows:
        """The samples by column, without pandas."""
        if self._frame is not None and self._is_given:
            return rows_of_frame(self._frame)  # the caller may have changed it
        return self._load()

    @property
    def samples(self) -> pandas.DataFrame:
        """A row for each sample, as a DataFrame of pandas."""
        if self._frame is None:
            self._frame = self._load().frame()
        return self._frame

    @samples.setter
    def samples(self, frame: pandas.DataFrame) -> None:
        self._frame, self._is_given = frame, True

    def set_table(self, path: str) -> None:
        """Use a Parquet file for the samples, read at first use."""
        self._rows, self._table = None, path

    def _load(self) -> ManifestRows:
        if self._rows is None:
            rows = load_rows(self._table)
            if len(rows) != self.num_samples:
                reason = f"expected {self.num_samples:,} rows, got {len(rows):,}"
                raise FormatError(reason, self._table, 0)
            self._rows = rows
        return self._rows

    def header_dict(self) -> dict[str, Any]:
        """Return the JSON header.

        Examples
        --------
        >>> import datetime
        >>> from fastshard import typed
        >>> manifest = typed.ShardManifest(
        ...     "a-000", "Sample", "1.0.0", 0, 0, datetime.datetime(2020, 1, 1), {}
        ... )
        >>> manifest.header_dict()["shard_id"]
        'a-000'
        """
        header: dict[str, Any] = {
            "manifest_version": MANIFEST_FORMAT_VERSION,
            "shard_id": self.shard_id,
            "schema_type": self.schema_type,
            "schema_version": self.schema_version,
            "num_samples": self.num_samples,
            "size_bytes": self.size_bytes,
            "created_at": self.created_at.isoformat(),
            "aggregates": self.aggregates,
        }
        if self.provenance:
            header["provenance"] = self.provenance
        if self.extras:
            header["fastshard"] = self.extras
        return header

    @classmethod
    def from_files(
        cls, json_path: str | os.PathLike[str], parquet_path: str | os.PathLike[str]
    ) -> ShardManifest:
        """Read a manifest.

        Raises
        ------
        FormatError
            One of the files is not part of a manifest, or they disagree.
        FileNotFoundError
            One of them does not exist.
        MissingLibraryError
            pyarrow is not installed.

        Examples
        --------
        >>> from fastshard import typed
        >>> ds = typed.write_samples(
        ...     [ImageSample(np.zeros(4, "f4"), "cat")], "new.tar", manifest=True
        ... )
        >>> found = typed.ShardManifest.from_files(
        ...     "new.manifest.json", "new.manifest.parquet"
        ... )
        >>> found.rows.column("label")
        ['cat']
        """
        manifest = cls.from_json_only(json_path)
        manifest.set_table(os.fspath(parquet_path))
        manifest._load()
        return manifest

    @classmethod
    def from_json_only(cls, json_path: str | os.PathLike[str]) -> ShardManifest:
        """Read the header of a manifest; its `samples` are empty.

        Raises
        ------
        FormatError
            The file is not a header of a manifest.
        FileNotFoundError
            It does not exist.

        Examples
        --------
        >>> from fastshard import typed
        >>> ds = typed.write_samples(
        ...     [ImageSample(np.zeros(4, "f4"), "cat")], "new.tar", manifest=True
        ... )
        >>> typed.ShardManifest.from_json_only("new.manifest.json").num_samples
        1
        """
        path = os.fspath(json_path)
        with open(path, "rb") as file:
            data = file.read(MAX_HEADER + 1)
        return cls._from_json(data, path)

    @classmethod
    def _from_json(cls, data: bytes, path: str) -> ShardManifest:
        header = parse_header(data, path)
        manifest = cls(
            shard_id=header["shard_id"],
            schema_type=header["schema_type"],
            schema_version=header["schema_version"],
            num_samples=header["num_samples"],
            size_bytes=header["size_bytes"],
            created_at=header["created_at"],
            aggregates=header["aggregates"],
            provenance=header.get("provenance"),
        )
        manifest.nbytes = len(data)
        extras = header.get("fastshard")
        manifest.extras = extras if isinstance(extras, dict) else {}
        known = manifest.extras.get("header_digest")
        if isinstance(known, str) and len(known) == len(NO_DIGEST):
            manifest.digest = digest(data.replace(known.encode(), NO_DIGEST.encode()))
        return manifest

    def __repr__(self) -> str:
        return (
            f"ShardManifest({self.shard_id!r}, {self.schema_type}, "
            f"{self.num_samples:,} samples)"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardManifest):
            return NotImplemented
        if self.header_dict() != other.header_dict():
            return False
        mine, others = self.rows, other.rows
        return mine.names == others.names and all(
            list(mine.column(name)) == list(others.column(name)) for name in mine.names
        )

    __hash__ = None  # type: ignore[assignment]


def manifest_path(shard: str, kind: str) -> str:
    """Return the path of a file of a shard's manifest: ``json`` or ``parquet``."""
    return f"{shard.removesuffix('.tar')}.manifest.{kind}"


def digest(text: bytes) -> str:
    """Return a digest as in headers, of as many letters as `NO_DIGEST`."""
    from hashlib import blake2b

    return blake2b(text, digest_size=len(NO_DIGEST) // 2).hexdigest()


def encode_header(manifest: ShardManifest) -> bytes:
    """Return the JSON of a header, with its own digest if requested."""
    header = finite(manifest.header_dict())
    if "header_digest" in manifest.extras:
        header["fastshard"]["header_digest"] = NO_DIGEST
    text = json.dumps(header, indent=2, allow_nan=False).encode()
    mark = f'"header_digest": "{NO_DIGEST}"'
    return text.replace(mark.encode(), mark.replace(NO_DIGEST, digest(text)).encode())


def parse_header(data: bytes, path: str) -> dict[str, Any]:
    """Return a checked header of a manifest; `created_at` is a datetime."""
    if len(data) > MAX_HEADER:
        raise FormatError(f"a header of more than {MAX_HEADER:,} bytes", path, 0)
    header = parse_value(data, path)  # other writers store Infinity

    def check(name: str, fine: bool, expected: str) -> None:
        if not fine:
            raise FormatError(f"{name!r} must be {expected}", path, 0)

    check("manifest", isinstance(header, dict), "an object")
    for name in ("shard_id", "schema_type", "schema_version"):
        if not isinstance(header.get(name), str):
            check(name, False, "a string")
    for name in ("num_samples", "size_bytes"):
        if not is_count(header.get(name)):
            check(name, False, "a number of at least 0")
    version = header.get("manifest_version", MANIFEST_FORMAT_VERSION)
    check("manifest_version", isinstance(version, str), "a string")
    if version.partition(".")[0] != MANIFEST_FORMAT_VERSION.partition(".")[0]:
        raise FormatError(f"manifest_version {version[:20]!r} is unknown", path, 0)
    try:
        header["created_at"] = datetime.fromisoformat(header.get("created_at"))
    except (TypeError, ValueError):
        check("created_at", False, "an ISO 8601 time")
    aggregates = header.setdefault("aggregates", {})
    check("aggregates", isinstance(aggregates, dict), "an object")
    for field, aggregate in aggregates.items():
        if not is_aggregate(aggregate):
            check(f"aggregates.{field}", False, "an aggregate")
    provenance = header.get("provenance", {})
    check("provenance", isinstance(provenance, dict), "an object")
    return header  # type: ignore[no-any-return]


def is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 63


def is_number(value: object) -> bool:
    """Return whether a value is a number in the range of float64."""
    return type(value) is float or (type(value) is int and abs(value) < 1 << 1000)


def is_aggregate(value: object) -> bool:
    """Return whether a value is an aggregate, known types checked."""
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    if value["type"] == "categorical":
        counts = value.get("value_counts")
        return isinstance(counts, dict) and all(map(is_count, counts.values()))
    if value["type"] == "numeric":
        return is_count(value.get("count")) and all(
            value.get(name) is None or is_number(value[name]) for name in NUMBERS
        )
    if value["type"] == "set":
        values = value.get("all_values")
        return isinstance(values, list) and all(isinstance(v, str) for v in values)
    return True


def finite(header: Any) -> Any:
    """Return a header with null for numbers that JSON lacks."""
    if isinstance(header, dict):
        return {name: finite(value) for name, value in header.items()}
    if isinstance(header, (list, tuple)):
        return [finite(value) for value in header]
    if isinstance(header, float) and not math.isfinite(header):
        return None
    return header
