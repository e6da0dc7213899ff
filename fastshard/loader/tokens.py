"""Windows of tokens: options, windows of a stream, packed rows."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from fastshard._util.options import check_choice

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastshard._core.loader.tokens import TokenTable

__all__ = ["PackedWindows", "Packing", "StreamWindows", "TokenOptions"]

Packing: TypeAlias = Literal["stream", "best-fit"]
PACK_BLOCK = 10_000  # documents that are packed together
MAX_LENGTH = 2**31 - 1  # tokens: positions in a window are int32


class TokenOptions(NamedTuple):
    """The options of `Dataset.tokens` but for the field and its dtype.

    Attributes
    ----------
    length, stride : int
        Tokens of a window, and from one to the next.
    eos : int or None
        Token between documents.
    pack : {"stream", "best-fit"}
    documents : bool
        Windows have the numbers of documents and the positions in them.
    drop_last : bool
        Leave out the tokens behind the last whole window.
    """

    length: int
    stride: int
    eos: int | None
    pack: Packing
    documents: bool
    drop_last: bool

    @classmethod
    def checked(
        cls,
        length: int,
        stride: int | None,
        eos: int | None,
        pack: Packing,
        documents: bool,
        drop_last: bool,
    ) -> TokenOptions:
        """Return checked options."""
        check_choice("pack", pack, ("stream", "best-fit"))
        length = index(length)
        if not 1 <= length <= MAX_LENGTH:
            raise ValueError(f"length must be from 1 to 2**31 - 1, got {length}")
        if stride is None:
            stride = max(1, length - 1)
        elif pack == "best-fit":
            raise ValueError(
                'stride is an option of pack="stream": rows of whole documents do not '
                "overlap"
            )
        elif not 1 <= index(stride) < 1 << 62:
            raise ValueError(f"stride must be at least 1, got {stride}")
        eos = None if eos is None else index(eos)
        return cls(length, index(stride), eos, pack, bool(documents), bool(drop_last))

    def separator(self, dtype: np.dtype[Any]) -> bytes:
        """Return the bytes of `eos`; empty for None."""
        if self.eos is None:
            return b""
        import numpy as np

        if dtype.kind not in "iu":
            raise ValueError(f"eos needs tokens of an integer dtype, got {dtype}")
        limits = np.iinfo(dtype)
        if not limits.min <= self.eos <= limits.max:
            raise ValueError(
                f"eos must be from {limits.min} to {limits.max}, as tokens of {dtype} "
                f"are, got {self.eos}"
            )
        return np.array(self.eos, dtype).tobytes()


class StreamWindows:
    """Windows of all documents after each other, `stride` tokens apart."""

    def __init__(self, table: TokenTable, options: TokenOptions) -> None:
        self._table = table
        self._length = options.length
        self._stride = options.stride
        self.count: int = count_windows(table.total, options)

    def gather(
        self,
        numbers: NDArray[np.int64],
        out: Any,
        documents: Any = None,
        positions: Any = None,
        page_in: bool = False,
    ) -> None:
        """Copy windows by number; see `TokenTable.gather_stream`."""
        self._table.gather_stream(
            numbers * self._stride, self._length, out, documents, positions, page_in
        )


class PackedWindows:
    """Rows of whole documents, packed by best fit in blocks of 10,000 documents."""

    def __init__(self, table: TokenTable, options: TokenOptions) -> None:
        self._table = table
        self._rows = table.pack(options.length, PACK_BLOCK)
        self.count: int = self._rows.count

    def gather(
        self,
        numbers: NDArray[np.int64],
        out: Any,
        documents: Any = None,
        positions: Any = None,
        page_in: bool = False,
    ) -> None:
        """Copy rows by number; see `TokenTable.gather_rows`."""
        self._table.gather_rows(numbers, self._rows, out, documents, positions, page_in)


def count_windows(total: int, options: TokenOptions) -> int:
    """Return the number of windows in a stream of `total` tokens."""
    length, stride = options.length, options.stride
    whole = (total - length) // stride + 1 if total >= length else 0
    if options.drop_last:
        return whole
    covered = (whole - 1) * stride + length if whole else 0
    # The next window begins before the end, and adds a token.
    return whole + (covered < total and whole * stride < total)
