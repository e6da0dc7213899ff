"""Sparse matrices and arrays of SciPy, in the .npz of ``scipy.sparse.save_npz``."""

from __future__ import annotations

import io
from typing import Any

from fastshard.errors import FormatError
from fastshard.typed.kinds.base import SCHEMAS, EncodedKind, SampleMaker

__all__ = ["KINDS"]

# deflate gives at most 1,032 bytes of one.
MAX_EXPANSION = 1032


class SparseKind(EncodedKind):
    """Sparse matrices and arrays of SciPy."""

    name = "sparse"
    libraries = ("scipy.sparse",)
    reference = f"{SCHEMAS}atdata-sparse-bytes/1.0.0#/$defs/sparse"
    lexicon = "sparseBytes"

    @classmethod
    def holds(cls, module: str, name: str) -> bool:
        return module.startswith("scipy.sparse")

    @staticmethod
    def encode(value: Any) -> object:
        """Return the .npz of a sparse matrix or array."""
        import scipy.sparse

        if not scipy.sparse.issparse(value):
            raise TypeError(f"expected a sparse matrix, got {type(value).__name__}")
        file = io.BytesIO()
        scipy.sparse.save_npz(file, value)
        return file.getvalue()

    @staticmethod
    def decode(data: Any) -> Any:
        """Return the sparse matrix or array of an .npz; its indices are checked."""
        import zipfile

        import scipy.sparse

        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MAX_EXPANSION * len(data):
            raise FormatError(f"{len(data):,} bytes claim to hold {size:,}", "", 0)
        value = scipy.sparse.load_npz(io.BytesIO(data))
        if value.format in (
            "csr",
            "csc",
            "bsr",
        ):  # otherwise code of SciPy reads beyond them
            value.check_format(full_check=True)
        return value

    @staticmethod
    def equals(left: Any, right: Any) -> bool:
        is_alike = left.dtype == right.dtype and left.shape == right.shape
        return is_alike and bool((left != right).nnz == 0)

    def make(self, name: str, maker: SampleMaker) -> Any:
        import numpy as np
        from scipy.sparse import csr_matrix

        values = maker.floats()
        return csr_matrix(np.where(values > 0, values, 0))


KINDS = (SparseKind,)
