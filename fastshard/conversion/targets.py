"""Targets of conversions: their encodings, checks and writers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from fastshard.conversion.values import ValueReader

__all__ = ["OutputColumn", "TargetFormat", "TargetWriter", "ValueEncoder"]

ValueEncoder = Callable[[Any], Any]  # from a sample to the column's stored value


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
        """Finish the last shard; return the results for `TargetFormat.complete`."""

    @abstractmethod
    def abandon(self) -> None:
        """Close the files; the directory is removed afterwards."""


class TargetFormat(ABC):
    """Format to write; it pickles.

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
        """Return the target's encoding for one of the source, or None."""

    @abstractmethod
    def accepts(self, encoding: str) -> bool:
        """Return whether the target has an encoding named by the user."""

    @abstractmethod
    def check_name(self, output: OutputColumn) -> None:
        """Raise ValueError for a column that the target cannot name."""

    @abstractmethod
    def check_columns(self, outputs: Sequence[OutputColumn]) -> None:
        """Raise ValueError for columns that the target cannot combine."""

    @abstractmethod
    def check_key(self, key: str) -> None:
        """Raise ValueError for a key that the target cannot hold."""

    @abstractmethod
    def encoder(self, output: OutputColumn, reader: ValueReader) -> ValueEncoder:
        """Return the function from a sample to the column's stored value.

        It raises a ValueError for values that the target cannot hold.
        """

    @abstractmethod
    def is_copied(
        self, output: OutputColumn, reader: ValueReader, *, is_same: bool
    ) -> bool:
        """Return whether stored bytes are copied unchanged and unchecked."""

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
