"""Alias module: the reader's name in synthefy-dataset-utils."""

from fastshard.columnar.reader import ShardedDatasetReader

__all__ = ["ShardedDatasetReader"]
