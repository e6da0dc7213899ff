"""Module of the reader, under the name that it has in synthefy-dataset-utils."""

from fastshard.columnar.reader import ShardedDatasetReader

__all__ = ["ShardedDatasetReader"]
