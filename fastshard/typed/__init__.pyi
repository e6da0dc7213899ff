from fastshard.errors import FastshardError as AtdataError
from fastshard.errors import FormatError as ShardError
from fastshard.errors import LensNotFoundError as LensNotFoundError
from fastshard.errors import PartialFailureError as PartialFailureError
from fastshard.errors import SampleKeyError as SampleKeyError
from fastshard.errors import SchemaError as SchemaError

__all__ = [
    "AtdataError",
    "LensNotFoundError",
    "PartialFailureError",
    "SampleKeyError",
    "SchemaError",
    "ShardError",
]
