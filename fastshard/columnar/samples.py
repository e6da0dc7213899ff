"""Alias module: the samples' name for pickles and callers."""

from fastshard.columnar.read.column_sample import ColumnSample, CopiedArrays

__all__ = ["ColumnSample", "CopiedArrays"]
