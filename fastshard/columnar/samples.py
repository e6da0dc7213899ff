"""Module of the samples, under the name that pickles and callers have."""

from fastshard.columnar.read.column_sample import ColumnSample, CopiedArrays

__all__ = ["ColumnSample", "CopiedArrays"]
