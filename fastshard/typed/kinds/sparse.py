"""Sparse matrices and arrays of SciPy, in the .npz of ``scipy.sparse.save_npz``."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import scipy.sparse

from fastshard.errors import FormatError

__all__ = ["decode", "encode"]

# deflate gives at most 1,032 bytes of one.
MAX_EXPANSION = 1032


def encode(value: object) -> bytes:
    """Return the .npz of a sparse matrix or array."""
    if not scipy.sparse.issparse(value):
        raise TypeError(f"expected a sparse matrix, got {type(value).__name__}")
    file = io.BytesIO()
    scipy.sparse.save_npz(file, value)
    return file.getvalue()


def decode(data: bytes) -> Any:
    """Return the sparse matrix or array of an .npz; its indices are checked."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > MAX_EXPANSION * len(data):
        raise FormatError(f"{len(data):,} bytes claim to hold {size:,}", "", 0)
    value = scipy.sparse.load_npz(io.BytesIO(data))
    if value.format in ("csr", "csc", "bsr"):  # else code of SciPy reads beyond them
        value.check_format(full_check=True)
    return value
