"""Targets of conversions: what a format holds, and the writer of its shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from fastshard.conversion.values import ValueReader

__all__ = ["OutputColumn", "TargetFormat", "TargetWriter", "ValueEncoder"]

ValueEncoder = Callable[[Any], Any]  # from a sample to what its column stores


class OutputColumn(NamedTuple):
    """A column of the target.

    Attributes
    ----------
    field : str
        Of the source; see `SourceColumn`.
    name : str
        Without the suffix that a tar's field has.
    encoding : str
        As the target stores it.
    """

    field: str
    name: str
    encoding: str


class TargetWriter(ABC):
    """Writer of consecutive samples, to one or more shards of a target."""

    @abstractmethod
    def write(self, key: str, values: list[tuple[int, Any]]) -> None:
        """Write a sample."""

    @abstractmethod
    def finish(self) -> list[Any]:
        """Finish the last shard; return what `TargetFormat.complete` needs of each."""

    @abstractmethod
    def abandon(self) -> None:
        """Close what is open; the directory is removed afterwards."""


class TargetFormat(ABC):
    """A format that is written to; it pickles.

    Attributes
    ----------
    name : str
        As ``--to`` takes it.
    has_key_column : bool
        Whether keys are a column, ``__key__``.
    is_open : bool
        Whether a sample may lack columns.
    is_serial : bool
        Whether one process writes all samples.
    needs_unique_keys : bool
        Whether no two samples may have one key.
    """

    name: ClassVar[str]
    has_key_column: ClassVar[bool] = True
    is_open: ClassVar[bool] = False
    is_serial: ClassVar[bool] = False
    needs_unique_keys: ClassVar[bool] = False

    @abstractmethod
    def adopt(self, encoding: str) -> str | None:
        """Return the target's encoding for one of the source; None: it has none."""

    @abstractmethod
    def accepts(self, encoding: str) -> bool:
        """Return whether an encoding that the user names is one of the target."""

    @abstractmethod
    def check_name(self, output: OutputColumn) -> None:
        """Raise ValueError for a column that the target cannot name."""

    @abstractmethod
    def check_columns(self, outputs: Sequence[OutputColumn]) -> None:
        """Raise ValueError for columns that the target cannot have together."""

    @abstractmethod
    def check_key(self, key: str) -> None:
        """Raise ValueError for a key that the target cannot hold."""

    @abstractmethod
    def encoder(self, output: OutputColumn, reader: ValueReader) -> ValueEncoder:
        """Return the function that makes of a sample what its column stores.

        It raises a ValueError for values that the target cannot hold.
        """

    @abstractmethod
    def is_copied(
        self, output: OutputColumn, reader: ValueReader, *, is_same: bool
    ) -> bool:
        """Return whether stored bytes go to the target unchanged, without a check."""

    @abstractmethod
    def open_writer(
        self,
        folder: str,
        part: str,
        outputs: Sequence[OutputColumn],
        *,
        max_size: int | None,
        count: int | None,
    ) -> TargetWriter:
        """Return a writer of shards into a directory."""

    @abstractmethod
    def complete(
        self,
        folder: str,
        parts: Sequence[Sequence[Any]],
        outputs: Sequence[OutputColumn],
    ) -> None:
        """Name the shards in order, and write the dataset's index."""


Targets = Mapping[str, TargetFormat]
