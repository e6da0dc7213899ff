"""Data frames of pandas, as Parquet files."""

from __future__ import annotations

import io
from typing import Any

from fastshard.typed.kinds.base import SCHEMAS, EncodedKind, SampleMaker

__all__ = ["KINDS"]


class DataFrameKind(EncodedKind):
    """Data frames of pandas, which reads and writes Parquet with PyArrow."""

    name = "dataframe"
    libraries = ("pandas", "pyarrow")
    classes = ("pandas.DataFrame",)
    # The lexicon has no name for data frames.
    reference = f"{SCHEMAS}atdata-dataframe/1.0.0#/$defs/dataframe"

    @staticmethod
    def encode(value: Any) -> object:
        """Return the Parquet file of a data frame."""
        import pandas as pd

        if not isinstance(value, pd.DataFrame):
            raise TypeError(f"expected a pandas.DataFrame, got {type(value).__name__}")
        file = io.BytesIO()
        value.to_parquet(file, engine="pyarrow")
        return file.getvalue()

    @staticmethod
    def decode(data: Any) -> Any:
        """Return the data frame of a Parquet file."""
        import pandas as pd

        return pd.read_parquet(io.BytesIO(data), engine="pyarrow")

    @staticmethod
    def equals(left: Any, right: Any) -> bool:
        return bool(left.equals(right))

    def make(self, name: str, maker: SampleMaker) -> Any:
        import pandas as pd

        return pd.DataFrame(maker.floats(), columns=list("abcd"))


KINDS = (DataFrameKind,)
