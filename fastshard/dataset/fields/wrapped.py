"""Samples that wrap stored ones and change some fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from fastshard.formats.codec import FieldCodec
from fastshard.formats.decoders import Decoder
from fastshard.formats.layout import FieldLayout
from fastshard.formats.sample import Sample

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = ["WrappedSample"]


class WrappedSample(Sample):
    """Base class of samples that wrap a stored one and pass its fields on."""

    __slots__ = ("stored",)

    stored: Any

    def __new__(cls, *args: object) -> WrappedSample:
        return super().__new__(cls)

    def __getattr__(self, name: str) -> Any:
        # Attributes that only some formats' samples have: `metadata`.
        if name.startswith("__") or any(
            name in vars(kind).get("__slots__", ()) for kind in type(self).__mro__
        ):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )
        return getattr(self.stored, name)

    def _stored_name(self, field: str) -> str:
        """Return the name that the stored sample has for a field."""
        return field

    @property
    def key(self) -> str:
        """The sample's key."""
        key: str = self.stored.key
        return key

    @property
    def position(self) -> int:
        """0-based position among the shard's samples."""
        position: int = self.stored.position
        return position

    @property
    def samples(self) -> Any:
        """The sequence that contains the sample."""
        return self.stored.samples

    @property
    def shard(self) -> Any:
        """The shard that holds the sample, or None if several do."""
        return self.stored.shard

    @property
    def codec(self) -> FieldCodec:  # type: ignore[override]
        """The codec of the stored sample's format."""
        codec: FieldCodec = self.stored.codec
        return codec

    @property
    def decoders(self) -> Any:
        """The ``decoders=`` of `fastshard.open`."""
        return self.stored.decoders

    def keys(self) -> list[str]:
        fields: list[str] = self.stored.keys()
        return fields

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, field: object) -> bool:
        return field in self.stored

    def __getitem__(self, field: str) -> Any:
        return self.stored[self._stored_name(field)]

    def view(self, field: str) -> memoryview:
        view: memoryview = self.stored.view(self._stored_name(field))
        return view

    def open(self, field: str) -> BinaryIO:
        file: BinaryIO = self.stored.open(self._stored_name(field))
        return file

    def array(
        self,
        field: str,
        dtype: DTypeLike | None = None,
        shape: int | tuple[int, ...] | None = None,
    ) -> NDArray[Any]:
        array: NDArray[Any] = self.stored.array(self._stored_name(field), dtype, shape)
        return array

    def text(self, field: str) -> str:
        text: str = self.stored.text(self._stored_name(field))
        return text

    def decoder_of(self, field: str) -> Decoder | None:
        decoder: Decoder | None = self.stored.decoder_of(self._stored_name(field))
        return decoder

    def layout_of(self, field: str) -> FieldLayout:
        layout: FieldLayout = self.stored.layout_of(self._stored_name(field))
        return layout

    def _is_stored(self, field: str) -> bool:
        is_stored: bool = self.stored._is_stored(self._stored_name(field))
        return is_stored

    def _decode_field(self, field: str) -> Any:
        return self.stored._decode_field(self._stored_name(field))

    def _decode_with(self, decoder: Decoder, field: str) -> Any:
        return self.stored._decode_with(decoder, self._stored_name(field))

    def _where(self, field: str) -> tuple[str, int, str]:
        where: tuple[str, int, str] = self.stored._where(self._stored_name(field))
        return where

    def place(self, field: str) -> Any:
        return self.stored.place(self._stored_name(field))

    def member(self, field: str) -> int:
        member: int = self.stored.member(self._stored_name(field))
        return member

    def narrow(
        self, only: tuple[str, ...] | None, required: bool, decoders: Any
    ) -> None:
        self.stored.narrow(only, required, decoders)

    def infos(self) -> Mapping[str, dict[str, Any]]:
        infos: Mapping[str, dict[str, Any]] = self.stored.infos()
        return infos
