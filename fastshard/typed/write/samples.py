"""Writing of samples to shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from fastshard.errors import SchemaError
from fastshard.typed.kinds.values import ArrayFormat, pack
from fastshard.typed.write.shards import PackedWriter

if TYPE_CHECKING:
    from fastshard.typed.dataset import Dataset
    from fastshard.typed.manifest.builder import ManifestBuilder

__all__ = ["Packing", "write_samples"]

T = TypeVar("T")
KEY_DIGITS = 12
Encode = Callable[[Any], bytes]


def write_samples(
    samples: Iterable[T],
    path: str | os.PathLike[str],
    *,
    maxcount: float | None = None,
    maxsize: float | str | None = None,
    manifest: bool = False,
    content_metadata: Any = None,
    key: Callable[[T], str] | None = None,
    array_format: ArrayFormat = "npy",
) -> Dataset[T]:
    """Write samples of one type to tar shards.

    Samples are taken one by one, so that an iterator may give more than memory holds.
    A shard is published when it is complete, with its index; it replaces one of the
    same path. After an error the complete shards stay.

    Arrays are stored as npy whose data begin at multiples of 64 bytes. The same samples
    give the same bytes.

    Parameters
    ----------
    samples : iterable of packable objects
        All of one class, or of `DictSample`.
    path : str or path-like
        The shard. If there may be several, ``-%06d`` is put before the suffix, unless
        the name has a number, ``train-%04d.tar``. Missing directories are made.
    maxcount : int, optional
        Samples in a shard, at most.
    maxsize : int or str, optional
        Size of a shard's file, at most: bytes, ``"500MB"``, ``"1GiB"``. A larger sample
        gets a shard of its own.
    manifest : bool, default False
        Write a manifest beside each shard, for `Dataset.query`; takes pyarrow.
    content_metadata : Packable or dict, optional
        The `content_metadata` of the dataset that is returned.
    key : callable, optional
        Returns the key of a sample; by default keys are the numbers of the samples,
        ``"000000000000"`` and so on.
    array_format : "npy" or "compact", default "npy"
        "compact" is the form of arrays that atdata writes; its data are not aligned.

    Returns
    -------
    Dataset
        Of the shards written.

    Raises
    ------
    ValueError
        There are no samples, samples of two types, or a key twice in a shard; the name
        does not end in ``.tar``; a value cannot be stored.
    TypeError, OverflowError
        A value cannot be stored; the message names the sample and the field.
    SchemaError
        An array has another dtype than its field declares. Also a `TypeError`.
    MissingLibraryError
        pyarrow is not installed and `manifest` is set.
    OSError
        A shard cannot be written.

    Examples
    --------
    >>> from fastshard import typed
    >>> samples = (ImageSample(np.full(4, i, "f4"), f"{i}") for i in range(5))
    >>> ds = typed.write_samples(samples, "new/train.tar", maxcount=2)
    >>> [path.rpartition("/")[2] for path in ds.list_shards()]
    ['train-000000.tar', 'train-000001.tar', 'train-000002.tar']
    >>> ds[3].label
    '3'
    """
    check_metadata(content_metadata)
    packing = Packing.of(samples, manifest=manifest, array_format=array_format)
    with PackedWriter(os.fspath(path), maxcount, maxsize, packing.make) as writer:
        packing.write(writer, key)
    return open_written(writer.paths, packing.sample_type, content_metadata)


class Packing(NamedTuple):
    """Samples of one type, and the options to write them.

    Attributes
    ----------
    samples : iterator
    sample_type : type
    encode : callable
        Returns the payload of a sample.
    make : callable or None
        Returns the builder of a shard's manifest.
    """

    samples: Iterator[Any]
    sample_type: type[Any]
    encode: Encode
    make: Callable[[str], ManifestBuilder] | None

    @classmethod
    def of(
        cls,
        samples: Iterable[Any],
        *,
        manifest: bool = False,
        array_format: ArrayFormat = "npy",
        **provenance: Any,
    ) -> Packing:
        """Take the first sample, which sets the type of all."""
        iterator = iter(samples)
        try:
            first = next(iterator)
        except StopIteration:
            raise ValueError("samples must be non-empty") from None
        kind: type[Any] = type(first)
        encode = encoder_for(first, array_format)
        make = partial(make_builder, kind, provenance) if manifest else None
        if make is not None:
            make("")  # raises before a file is written
        return cls(chain([first], iterator), kind, encode, make)

    def write(
        self, writer: PackedWriter, key: Callable[[Any], str] | None = None
    ) -> int:
        """Write the samples to shards; return their number."""
        number = -1
        for number, sample in enumerate(self.samples):
            check_kind(sample, number, self.sample_type)
            name = number_key(number) if key is None else key(sample)
            try:
                payload = self.encode(sample)
            except (TypeError, ValueError, OverflowError) as error:
                fail(error, number, name)
            writer.write(name, payload, sample)
        return number + 1


def number_key(number: int) -> str:
    """Return the key of a sample by its number."""
    return f"{number:0{KEY_DIGITS}d}"


def check_kind(sample: object, number: int, kind: type) -> None:
    """Raise ValueError unless a sample has the type of the first one."""
    if type(sample) is not kind:
        raise ValueError(
            f"samples must be of one type: sample 0 is {kind.__name__}, "
            f"sample {number} is {type(sample).__name__}"
        )


def fail(error: Exception, number: int, key: object) -> NoReturn:
    """Raise an encoder's error with the sample's name."""
    if isinstance(error, SchemaError):
        where = None, str(key), error.field
        raise SchemaError(error.reason, "", error.offset, *where) from error
    kinds = (OverflowError, TypeError, ValueError)
    kind = next(kind for kind in kinds if isinstance(error, kind))
    raise kind(f"sample {number} ({key!r}), {error}") from error


def encoder_for(sample: Any, array_format: ArrayFormat) -> Encode:
    """Return the function that encodes samples of one type."""
    from fastshard.typed.dict_sample import DictSample
    from fastshard.typed.fields import encoder_of
    from fastshard.typed.sample_type import PackableSample

    pack({}, array_format=array_format)  # checks it
    if isinstance(sample, DictSample):
        return partial(encode_dict, array_format)
    kind = type(sample)
    if isinstance(sample, PackableSample) and kind.packed is PackableSample.packed:
        return encoder_of(kind, array_format).encode
    if hasattr(kind, "packed"):
        return partial(encode_by_itself)
    raise TypeError(
        f"sample 0: expected a packable object, got {kind.__name__}; see "
        "fastshard.typed.packable"
    )


def encode_dict(array_format: ArrayFormat, sample: Any) -> bytes:
    return pack(sample.to_dict(), array_format=array_format)


def encode_by_itself(sample: Any) -> bytes:
    payload = sample.packed
    if not isinstance(payload, bytes):
        raise TypeError(f"packed must be bytes, got {type(payload).__name__}")
    return payload


def make_builder(
    sample_type: type, provenance: dict[str, Any], shard_id: str
) -> ManifestBuilder:
    from fastshard.typed.dict_sample import DictSample
    from fastshard.typed.manifest.builder import ManifestBuilder
    from fastshard.typed.manifest.rows import import_parquet

    import_parquet()
    if issubclass(sample_type, DictSample):
        raise TypeError(
            "a manifest has the fields that a class declares; DictSample declares none"
        )
    return ManifestBuilder(sample_type, shard_id, **provenance)


def check_metadata(metadata: Any) -> None:
    """Raise TypeError for metadata that are neither a dict nor packable."""
    if metadata is not None and not isinstance(metadata, Mapping):
        from fastshard.typed.sample_type import Packable

        if not isinstance(metadata, Packable):
            raise TypeError(
                "content_metadata must be a Packable instance or dict, "
                f"got {type(metadata).__name__}"
            )


def open_written(
    paths: list[str], sample_type: type[T], content_metadata: Any
) -> Dataset[T]:
    from fastshard.typed.dataset import Dataset

    source: Any = Path(paths[0]) if len(paths) == 1 else [Path(path) for path in paths]
    ds: Dataset[T] = Dataset(source, sample_type)
    ds._content_metadata = content_metadata
    return ds
