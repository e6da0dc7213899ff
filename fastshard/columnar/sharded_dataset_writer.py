"""Module of the writer, under the name that it has in synthefy-dataset-utils."""

from fastshard.columnar.write.writer import ShardedDatasetWriter

__all__ = ["ShardedDatasetWriter"]
