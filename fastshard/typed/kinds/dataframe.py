"""Data frames of pandas, as Parquet files."""

from __future__ import annotations

import io
from typing import Any

import pandas as pd
import pyarrow  # noqa: F401 - pandas reads and writes Parquet with it

__all__ = ["decode", "encode"]


def encode(value: object) -> bytes:
    """Return the Parquet file of a data frame."""
    if not isinstance(value, pd.DataFrame):
        raise TypeError(f"expected a pandas.DataFrame, got {type(value).__name__}")
    file = io.BytesIO()
    value.to_parquet(file, engine="pyarrow")
    return file.getvalue()


def decode(data: bytes) -> Any:
    """Return the data frame of a Parquet file."""
    return pd.read_parquet(io.BytesIO(data), engine="pyarrow")
