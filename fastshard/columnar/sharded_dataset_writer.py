"""Alias module: the writer's name in synthefy-dataset-utils."""

from fastshard.columnar.write.writer import ShardedDatasetWriter

__all__ = ["ShardedDatasetWriter"]
