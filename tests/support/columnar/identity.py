"""Identities of rows in packs, by a checksum of one bit at a time."""

from __future__ import annotations

import functools
import struct
from typing import Any

ROW_BITS = 31
POLYNOMIAL = 0x82F63B78  # of CRC-32C, reflected


@functools.lru_cache(256)
def crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ crc_of_byte((crc ^ byte) & 0xFF)
    return crc ^ 0xFFFFFFFF


def identify(field: str, sample_id: str, shard: int, offset: int, row: int) -> int:
    """Return the value of ``<field>_row`` of a sample."""
    place = struct.pack("<3q", shard, offset, row)
    identity = crc32c(field.encode() + place + sample_id.encode())
    return identity << ROW_BITS | row


def row_of(
    value: Any, field: str, sample_id: str, shard: int, offset: int
) -> int | None:
    """Return the row in a value of ``<field>_row``; None for a member of its own.

    Raises ValueError if the value is not that of the sample.
    """
    if value is None:
        return None
    row: int = value & (1 << ROW_BITS) - 1
    if identify(field, sample_id, shard, offset, row) != value:
        raise ValueError(f"the row {value} of {sample_id!r} in {field} is another's")
    return row
