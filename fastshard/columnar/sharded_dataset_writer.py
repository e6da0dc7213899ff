"""The module that synthefy-dataset-utils has the class in."""

from fastshard.columnar.write.writer import ShardedDatasetWriter

__all__ = ["ShardedDatasetWriter"]
