"""The module that synthefy-dataset-utils has the class in."""

from fastshard.columnar.read.reader import ShardedDatasetReader

__all__ = ["ShardedDatasetReader"]
