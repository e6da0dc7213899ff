"""Manifests under construction."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastshard.typed.manifest.aggregates import create_aggregate
from fastshard.typed.manifest.fields import resolve_manifest_fields
from fastshard.typed.manifest.rows import KEY, OFFSET, SIZE, ManifestRows
from fastshard.typed.manifest.shard_manifest import ShardManifest
from fastshard.where.columns import plain_value

__all__ = ["ManifestBuilder"]


class ManifestBuilder:
    """Builder of the manifest of one shard.

    Parameters
    ----------
    sample_type : type
        The packable class of the samples.
    shard_id : str
        Name of the shard, without ``.tar``.
    schema_version : str, default "1.0.0"
    source_job_id : str, optional
        Provenance.
    parent_shards : list of str, optional
        Provenance: the shards that this one was made from.
    pipeline_version : str, optional
        Provenance.

    Raises
    ------
    TypeError
        `sample_type` is not a packable class.

    Examples
    --------
    >>> from fastshard import typed
    >>> builder = typed.ManifestBuilder(ImageSample, "train-000000")
    >>> sample = ImageSample(np.zeros(4, "f4"), "cat")
    >>> builder.add_sample(key="a", offset=512, size=123, sample=sample)
    >>> builder.build().aggregates
    {'label': {'type': 'categorical', 'cardinality': 1, 'value_counts': {'cat': 1}}}
    """

    def __init__(
        self,
        sample_type: type,
        shard_id: str,
        schema_version: str = "1.0.0",
        source_job_id: str | None = None,
        parent_shards: list[str] | None = None,
        pipeline_version: str | None = None,
    ) -> None:
        self.sample_type = sample_type
        self._shard_id = shard_id
        self._version = schema_version
        provenance = {
            "source_job_id": source_job_id,
            "parent_shards": parent_shards,
            "pipeline_version": pipeline_version,
        }
        self._provenance = {k: v for k, v in provenance.items() if v}
        fields = resolve_manifest_fields(sample_type)
        self._aggregates = {
            name: create_aggregate(field.aggregate) for name, field in fields.items()
        }
        self._columns: dict[str, list[Any]] = {
            name: [] for name in (KEY, OFFSET, SIZE, *fields)
        }

    def add_sample(self, *, key: str, offset: int, size: int, sample: Any) -> None:
        """Add a sample.

        Parameters
        ----------
        key : str
        offset : int
            Byte of the shard that the payload begins at.
        size : int
            Bytes of the payload.
        sample : object
            Has the fields as attributes; a field that is None or missing is in no
            aggregate.

        Raises
        ------
        TypeError
            A field's value is not one that its aggregate sums up.

        Examples
        --------
        >>> from fastshard import typed
        >>> builder = typed.ManifestBuilder(ImageSample, "train-000000")
        >>> sample = ImageSample(np.zeros(4, "f4"), "cat")
        >>> builder.add_sample(key="a", offset=512, size=123, sample=sample)
        """
        values: list[Any] = [key, offset, size]
        for name in self._aggregates:
            values.append(stored_value(getattr(sample, name, None)))
        for (name, aggregate), value in zip(
            self._aggregates.items(), values[3:], strict=True
        ):
            if value is not None:
                try:
                    aggregate.add(value)
                except (TypeError, ValueError, OverflowError) as error:
                    raise TypeError(f"field {name!r}: {error}") from error
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def build(self) -> ShardManifest:
        """Return the manifest of the samples so far.

        Examples
        --------
        >>> from fastshard import typed
        >>> typed.ManifestBuilder(ImageSample, "train-000000").build().num_samples
        0
        """
        count = len(self._columns[KEY])
        columns = self._columns if count else {}
        return ShardManifest(
            shard_id=self._shard_id,
            schema_type=self.sample_type.__name__,
            schema_version=self._version,
            num_samples=count,
            size_bytes=sum(self._columns[SIZE]),
            created_at=datetime.now(UTC),
            aggregates={name: a.to_dict() for name, a in self._aggregates.items()},
            samples=ManifestRows.of(
                {name: list(values) for name, values in columns.items()}
            ),
            provenance=self._provenance,
        )


def stored_value(value: Any) -> Any:
    """Return a field's value as a row and the payload store it."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return [stored_value(each) for each in value]
    return plain_value(value)
