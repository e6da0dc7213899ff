"""Picture fields of a dataset, and samples with decoded pictures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from weakref import ref

from fastshard.dataset.fields.wrapped import WrappedSample
from fastshard.formats.decoders import Decoder, locate_error
from fastshard.formats.field_info import FieldInfo
from fastshard.formats.layout import VALUE, FieldLayout
from fastshard.formats.sample import Sample

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from fastshard._core.table.order import Order
    from fastshard.loader.buffers import BufferSet
    from fastshard.loader.images import ImageReader

__all__ = [
    "Crop",
    "ImageDecoder",
    "ImageField",
    "ImageFields",
    "ImageMaker",
    "ImageMode",
    "ImageSample",
    "Truncated",
    "base_position",
    "check_rows",
    "common_shape",
    "decode_item",
    "decode_rows",
    "image_fields",
    "image_names",
    "read_pictures",
]

Crop: TypeAlias = Literal["center", "random"] | None
ImageMode: TypeAlias = Literal["RGB", "L"]
Truncated: TypeAlias = Literal["error", "fill"]
ImageDecoder: TypeAlias = str | Callable[[memoryview], Any] | None

NPY_MAGIC = b"\x93NUMPY"


class ImageField(NamedTuple):
    """A field's decoder of images, and the epoch of its random crops."""

    reader: ImageReader
    epoch: int  # of random crops and flips, without a shuffle


class ImageFields:
    """Image fields of a dataset, with their readers; immutable."""

    __slots__ = ("_fields", "epoch")

    def __init__(
        self, fields: Mapping[str, ImageField], epoch: int | None = None
    ) -> None:
        self._fields = dict(fields)
        self.epoch = epoch

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageFields, (self._fields, self.epoch)

    def __contains__(self, field: object) -> bool:
        return field in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __getitem__(self, field: str) -> ImageField:
        return self._fields[field]

    def __or__(self, other: ImageFields) -> ImageFields:
        return ImageFields(self._fields | other._fields, self.epoch)

    def only(self, names: Iterable[str]) -> ImageFields | None:
        """Return the fields of some names; None if there are none."""
        kept = {name: self._fields[name] for name in names if name in self._fields}
        return ImageFields(kept, self.epoch) if kept else None

    def at_epoch(self, epoch: int) -> ImageFields:
        """Return the fields with random crops and flips of an epoch."""
        return ImageFields(self._fields, epoch)

    def wrap(
        self,
        samples: Iterable[Sample],
        base_positions: Iterable[int],
        epoch: int | None,
    ) -> list[Any]:
        """Return samples whose fields are decoded."""
        if self.epoch is not None:
            epoch = self.epoch
        return [
            ImageSample(sample, self, (epoch, position))
            for sample, position in zip(samples, base_positions, strict=True)
        ]

    def infos(self, stored: Collection[str]) -> dict[str, FieldInfo]:
        """Return the `FieldInfo` of each image field among some stored fields."""
        return {
            name: FieldInfo("image", "uint8", field.reader.row_shape)
            for name, field in self._fields.items()
            if name in stored
        }

    def describe(self) -> str:
        """Return ``images jpg 224x224 random``, for the dataset's repr."""
        parts = []
        for name, field in self._fields.items():
            options = field.reader.options
            size = "" if options.size is None else "{}x{}".format(*options.size)
            flip = "flip" if options.flip else ""
            mode = "" if options.mode == "RGB" else options.mode
            words = ("images", name, size, options.crop, flip, mode)
            parts.append(" ".join(filter(None, words)))
        return ", ".join(parts)


def image_names(field: str | Sequence[str]) -> list[str]:
    """Return the names of images that an argument of `Dataset.images` gives."""
    if not isinstance(field, Iterable):
        kind = type(field).__name__
        raise TypeError(f"field must be str or a sequence of them, got {kind}")
    names = [field] if isinstance(field, str) else list(field)
    for name in names:
        if not isinstance(name, str):
            kind = type(name).__name__
            raise TypeError(f"a field must be str, got {kind}")
    if not names:
        raise ValueError("expected at least one field of images, got none")
    return names


def image_fields(
    names: Iterable[str], epoch: int, options: Mapping[str, Any]
) -> ImageFields:
    """Return the fields that arguments of `Dataset.images` describe."""
    from fastshard.loader.images import ImageOptions, ImageReader

    reader = ImageReader(ImageOptions.checked(**options))
    return ImageFields({name: ImageField(reader, epoch) for name in names})


class PictureDecoder:
    """Decoder of one picture: options, and the source of its random crop."""

    __slots__ = ("_draw", "_reader")
    kind = "image"  # as of `FieldInfo`
    names_bytes = True  # its FormatErrors name bytes of the field

    def __init__(self, reader: ImageReader, draw: tuple[int, int]) -> None:
        self._reader = reader
        self._draw = draw

    def __call__(self, view: memoryview) -> NDArray[Any]:
        picture: NDArray[Any] = self._reader.read(view, self._draw)
        return picture


class ImageSample(WrappedSample):
    """Sample whose image fields are decoded to arrays; see `Dataset.images`.

    ``sample["jpg"]`` of an image field is a uint8 array ``[height, width, channels]``,
    decoded at the first access and kept. `view` and `open` return its stored bytes.
    Other fields, `key`, `position` and `infos` are those of the stored sample.

    A pickle holds copies of the stored bytes, and the pictures that were decoded.

    Examples
    --------
    >>> import numpy as np
    >>> import fastshard
    >>> from PIL import Image
    >>> with fastshard.ShardWriter("cats.tar") as writer:
    ...     picture = Image.new("RGB", (8, 6), "red")
    ...     writer.write({"__key__": "cat", "png": picture, "cls": 3})
    >>> sample = fastshard.open("cats.tar").images("png")[0]
    >>> sample["png"].shape, bytes(sample["cls"]), sample.view("png").nbytes > 50
    ((6, 8, 3), b'3', True)
    >>> sample.decode()["png"][0, 0]
    array([255,   0,   0], dtype=uint8)
    """

    __slots__ = ("_draw", "_pictures", "images")

    images: ImageFields

    def __init__(
        self,
        stored: Any,
        images: ImageFields,
        draw: tuple[int | None, int],
        pictures: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self.stored = stored
        self.images = images
        self._draw = draw
        self._pictures = dict(pictures or {})

    def __getitem__(self, field: str) -> Any:
        """Return an image as an array, or another field as the stored sample does.

        Returns
        -------
        ndarray of uint8 [height, width, channels], or memoryview

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.
        FormatError
            The picture is damaged; the error names shard, member and byte.
        MissingLibraryError
            The library that decodes it is not installed.
        """
        return self._picture(field) if field in self.images else self.stored[field]

    def _picture(self, field: str) -> NDArray[Any]:
        """Return a picture, decoded at the first call."""
        found = self._pictures.get(field)
        if found is None:
            found = self._pictures[field] = self._decode_picture(field)
        return found

    def _decode_picture(self, field: str, out: Any = None) -> NDArray[Any]:
        reader, default = self.images[field]
        epoch, position = self._draw
        encoded = self._encoded(field)
        try:
            return reader.read(
                encoded, (default if epoch is None else epoch, position), out
            )
        except Exception as error:
            path, offset, name = self.stored._where(field)
            offset += self.stored.view(field).nbytes - encoded.nbytes
            located = locate_error(error, path, offset, name, names_bytes=True)
            if located is error:
                raise
            raise located from error.__cause__

    def _encoded(self, field: str) -> memoryview:
        """Return the bytes of a picture: the stored ones, or those of an array."""
        view: memoryview = self.stored.view(field)
        if not view or view[0] != NPY_MAGIC[0] or view[: len(NPY_MAGIC)] != NPY_MAGIC:
            return view
        return memoryview(self.stored.array(field).reshape(-1).view("u1"))

    def _picture_decoder(self, field: str) -> PictureDecoder:
        reader, default = self.images[field]
        epoch, position = self._draw
        return PictureDecoder(reader, (default if epoch is None else epoch, position))

    def read_into(self, field: str, row: NDArray[Any]) -> None:
        """Decode a picture into a row of a batch.

        Raises
        ------
        FieldNotFoundError, FormatError
            As for ``sample[field]``.
        """
        kept = self._pictures.get(field)
        if kept is None:
            self._decode_picture(field, row)
        elif not _is_same_memory(kept, row):
            row[...] = kept

    def decode_into(self, rows: Mapping[str, NDArray[Any] | None]) -> ImageSample:
        """Return the sample with its pictures decoded.

        A mapped function may keep the sample, so it must not refer to the rows, which
        are reused.

        Parameters
        ----------
        rows : Mapping of str to ndarray or None
            By image field a row of a batch, which is the picture's memory from now on;
            None: the picture has memory of its own.
        """
        pictures = {}
        for field, row in rows.items():
            if row is None:
                pictures[field] = self._picture(field)
            else:
                self.read_into(field, row)
                pictures[field] = row
        return ImageSample(self.stored, self.images, self._draw, pictures)

    def shape_of(self, field: str) -> tuple[int, ...] | None:
        """Return a picture's shape if it is known without decoding, else None."""
        kept = self._pictures.get(field)
        if kept is not None:
            return kept.shape
        reader = self.images[field].reader
        if reader.row_shape is not None:
            return reader.row_shape
        return reader.shape_of(self._encoded(field))

    def array(
        self,
        field: str,
        dtype: DTypeLike | None = None,
        shape: int | tuple[int, ...] | None = None,
    ) -> NDArray[Any]:
        """Return a field as an array: a picture, or as `Sample.array` does.

        Parameters
        ----------
        field : str
        dtype, shape : optional
            Of the stored bytes, also of a picture.
        """
        if field in self.images and dtype is None:
            return self._picture(field)
        array: NDArray[Any] = self.stored.array(field, dtype, shape)
        return array

    def decode(self, *fields: str) -> dict[str, Any]:
        names = fields or self.keys()
        rest = [name for name in names if name not in self.images]
        values = self.stored.decode(*rest) if rest else {"__key__": self.key}
        decoded = {"__key__": values["__key__"]}
        for name in names:
            decoded[name] = self._picture(name) if name in self.images else values[name]
        return decoded

    def decoder_of(self, field: str) -> Decoder | None:
        if field in self.images:
            return self._picture_decoder(field)
        decoder: Decoder | None = self.stored.decoder_of(field)
        return decoder

    def layout_of(self, field: str) -> FieldLayout:
        if field in self.images:
            return VALUE
        layout: FieldLayout = self.stored.layout_of(field)
        return layout

    def _decode_field(self, field: str) -> Any:
        if field in self.images:
            return self._picture(field)
        return self.stored._decode_field(field)

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageSample, (self.stored, self.images, self._draw, self._pictures)


def _is_same_memory(a: NDArray[Any], b: NDArray[Any]) -> bool:
    found = a.__array_interface__, b.__array_interface__
    return all(found[0][name] == found[1][name] for name in ("data", "shape"))


def common_shape(samples: Sequence[ImageSample], field: str) -> tuple[int, ...] | None:
    """Return the shape of a field's pictures, or None if it differs or is not known."""
    shapes = {sample.shape_of(field) for sample in samples}
    return shapes.pop() if len(shapes) == 1 else None


class ImageMaker:
    """Function of an iteration: from a stored sample to a mapped one with images.

    Attributes
    ----------
    iterator : weakref or None
        The iteration, which counts its items.
    """

    def __init__(
        self,
        images: ImageFields,
        epoch: int | None,
        base_position: Callable[[int], int],
        make: Callable[[Any], Any] | None,
        decodes: bool,
    ) -> None:
        self._images = images
        self._epoch = epoch
        self._base_position = base_position
        self._make = make
        self._decodes = decodes
        self.iterator: ref[Any] | None = None

    def __call__(self, sample: Sample) -> Any:
        assert self.iterator is not None
        iterator = self.iterator()
        assert iterator is not None
        position = self._base_position(iterator.position - 1)
        (item,) = self._images.wrap([sample], [position], self._epoch)
        if self._make is not None:
            item = self._make(item)
        return decode_item(item) if self._decodes else item


def base_position(order: Order | None, i: int) -> int:
    """Return the position before selection and shuffle of an item."""
    return i if order is None else order[i]


def check_rows(out: Any, count: int, shape: tuple[int, ...] | None) -> NDArray[Any]:
    """Return a buffer for pictures as an array ``[at least count, H, W, C]``."""
    import numpy as np

    array = out if isinstance(out, np.ndarray) else np.asarray(memoryview(out))
    rows = "[height, width, channels]" if shape is None else list(shape)
    problem = ""
    if array.dtype != np.uint8:
        problem = f"dtype {array.dtype}"
    elif array.ndim != 4 or (shape is not None and array.shape[1:] != shape):
        problem = f"shape {list(array.shape)}"
    elif len(array) < count:
        problem = f"{len(array):,} rows"
    elif not array.flags.writeable:
        problem = "a read-only array"
    elif not array.flags.c_contiguous:
        problem = "a strided array"
    if problem:
        raise ValueError(
            f"out must be a writable, C-contiguous array of uint8, at least {count:,} "
            f"rows of {rows}, got {problem}"
        )
    return array


def read_pictures(
    samples: Sequence[ImageSample], field: str, rows: NDArray[Any]
) -> None:
    """Decode a field of samples into rows ``[at least samples, H, W, C]``."""
    shape = rows.shape[1:]
    for sample in samples:
        found = sample.shape_of(field)
        if found is not None and found != shape:
            raise ValueError(
                f"out must have rows of {list(found)}, as field {field!r} of sample "
                f"{sample.key!r} is, got {list(shape)}"
            )
    for sample, row in zip(samples, rows, strict=False):
        sample.read_into(field, row)


def decode_item(item: Any) -> Any:
    """Return a sample, or a pair of samples, with its images decoded."""
    return _decode_item(item, 0, 1, None, "")


def decode_rows(
    items: list[Any],
    row: int,
    rows: int,
    buffers: BufferSet | None,
    prefix: str = "",
) -> list[Any]:
    """Return samples, or pairs of samples, with their images decoded."""
    return [
        _decode_item(item, row + i, rows, buffers, prefix)
        for i, item in enumerate(items)
    ]


def _decode_item(
    item: Any, row: int, rows: int, buffers: BufferSet | None, prefix: str
) -> Any:
    if isinstance(item, ImageSample):
        taken: dict[str, NDArray[Any] | None] = {}
        for field in item.images:
            shape = item.images[field].reader.row_shape
            if shape is None or buffers is None:
                taken[field] = None
            else:
                whole = rows, *shape
                taken[field] = buffers.take_row(prefix + field, whole, "u1", row)
        return item.decode_into(taken)
    if not isinstance(item, tuple):
        return item
    parts = [
        _decode_item(part, row, rows, buffers, f"{prefix}[{k}]")
        for k, part in enumerate(item)
    ]
    if all(one is other for one, other in zip(parts, item, strict=True)):
        return item
    return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
