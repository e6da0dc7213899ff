"""The module that synthefy-dataset-utils has the class in."""

from fastshard.columnar.reader import ShardedDatasetReader

__all__ = ["ShardedDatasetReader"]
