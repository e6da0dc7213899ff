"""Module of the reader, under the name that it has in synthefy-dataset-utils."""

from fastshard.columnar.read.reader import ShardedDatasetReader

__all__ = ["ShardedDatasetReader"]
