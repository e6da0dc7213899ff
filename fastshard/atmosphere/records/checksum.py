"""Checksums of shards, and of code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from fastshard.atmosphere.records.checked import ABSENT, RecordFields, RecordPart

__all__ = ["CodeHash", "ShardChecksum", "read_checksum", "write_checksum"]

NONE = {"algorithm": "none", "digest": ""}  # placeholder of a required checksum
SHA256 = re.compile(r"[0-9A-Fa-f]{64}")


@dataclass
class Digest(RecordPart):
    """Base of checksums: an algorithm, and the digest in hexadecimal."""

    algorithm: str
    digest: str

    LONGEST: ClassVar[tuple[int, int]] = 20, 128

    @classmethod
    def _read(cls, fields: RecordFields) -> Self:
        algorithm = fields.text("algorithm", cls.LONGEST[0])
        digest = fields.text("digest", cls.LONGEST[1])
        is_valid = algorithm != "sha256" or SHA256.fullmatch(digest) is not None
        if fields.is_to_publish and not is_valid:  # others are not compared
            raise fields.fail("expected the 64 hexadecimal digits of SHA-256", "digest")
        return cls(algorithm, digest, extra=fields.rest())

    def _write(self) -> dict[str, Any]:
        return {"algorithm": self.algorithm, "digest": self.digest}


@dataclass
class ShardChecksum(Digest):
    """Checksum of a shard.

    Parameters
    ----------
    algorithm : str
        ``"sha256"``; others are kept.
    digest : str
        Hexadecimal digits.
    extra : dict, optional
        Fields that this version does not know.

    Examples
    --------
    >>> from fastshard.typed import atmosphere
    >>> atmosphere.ShardChecksum("sha256", "00" * 32).to_record()["algorithm"]
    'sha256'
    """


@dataclass
class CodeHash(Digest):
    """Checksum of the code that a lens refers to.

    Parameters
    ----------
    algorithm : str
    digest : str
        Hexadecimal digits.
    extra : dict, optional
        Fields that this version does not know.
    """


def read_checksum(fields: RecordFields) -> ShardChecksum | None:
    """Return the checksum of a shard; None if absent or "none"."""
    value = fields.get("checksum")
    if value is ABSENT or value is None:
        return None
    found = ShardChecksum._read(fields.of(value, "checksum"))
    return None if found.algorithm == "none" and not found.digest else found


def write_checksum(checksum: ShardChecksum | None) -> dict[str, Any]:
    """Return the record of a checksum, with a placeholder for None."""
    return dict(NONE) if checksum is None else checksum.to_record()
