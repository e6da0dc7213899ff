"""Packs: members that hold the arrays of many samples, as rows of one array.

A pack is a tar member named by the offset of its own data, ``pack_000000000512.npy``:
an ``.npy`` file, version 1.0, in C order, of shape ``(rows, *shape)``. Its rows are
arrays of samples with equal shape and dtype. The table ``samples`` refers to it with
three columns: ``<field>_shard``, ``<field>_offset`` (of the pack's data, as for a
member of one sample) and ``<field>_row``. Where ``<field>_row`` is NULL, the array is a
member of its own, ``<id>.npy``, which its name identifies.

``<field>_row`` is the row in the pack, counted from 0, and above its 31 bits the
identity of the sample's place: see `fastshard._core.table.checksums`. A value whose
identity differs is damaged, or that of another sample.

A field has the column ``<field>_row`` once it is named in the table
``fastshard_packed``, with the version of its rows; the dataset has that table once a
field was packed. Datasets without it are those of the original format. Rows of version
1, or NULL, have no identity: they are read, and a writer that opens the dataset gives
them one.

An array is packed if ``np.save`` stores it in C order, under a header of version 1.0,
and it has no Python objects, at least one byte and at most `MAX_ROW_BYTES`.

A pack that a writer ended early may be followed by a dead member,
``dead_000000002048.bin``, which covers the rest of the space reserved for it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

__all__ = [
    "MAX_ROWS",
    "MAX_ROW_BYTES",
    "PACKED_TABLE",
    "ROW_VERSION",
    "name_columns",
    "pack_name",
    "row_column",
]

PACKED_TABLE = "fastshard_packed"  # field TEXT PRIMARY KEY, version INTEGER
ROW_VERSION = 2  # of rows with identities
MAX_ROWS = 10**11  # of a pack; the header has room for its digits
MAX_ROW_BYTES = 64 << 10  # of an array worth packing


def pack_name(offset: int) -> str:
    """Return the member name of the pack whose data begins at `offset`."""
    return f"pack_{offset:012d}.npy"


def row_column(field: str) -> str:
    """Return the column of ``samples`` that holds a field's rows in packs."""
    return f"{field}_row"


def name_columns(fields: Sequence[str], packed: Container[str]) -> list[str]:
    """Return the columns of ``samples`` that refer to the arrays of fields.

    Offset and shard of each field, then the rows of the fields that may have packs.
    """
    names = [f"{field}_{what}" for field in fields for what in ("offset", "shard")]
    return names + [row_column(field) for field in fields if field in packed]
