from fastshard.errors import FastshardError as AtdataError
from fastshard.errors import FormatError as ShardError
from fastshard.errors import LensNotFoundError as LensNotFoundError
from fastshard.errors import PartialFailureError as PartialFailureError
from fastshard.errors import SampleKeyError as SampleKeyError
from fastshard.errors import SchemaError as SchemaError
from fastshard.typed.checksums import verify_checksums as verify_checksums
from fastshard.typed.logs import LoggerProtocol as LoggerProtocol
from fastshard.typed.logs import configure_logging as configure_logging
from fastshard.typed.logs import get_logger as get_logger
from fastshard.typed.logs import log_operation as log_operation
from fastshard.typed.sources.protocol import DataSource as DataSource
from fastshard.typed.sources.s3 import S3Source as S3Source
from fastshard.typed.sources.url import URLSource as URLSource

__all__ = [
    "AtdataError",
    "DataSource",
    "LensNotFoundError",
    "LoggerProtocol",
    "PartialFailureError",
    "S3Source",
    "SampleKeyError",
    "SchemaError",
    "ShardError",
    "URLSource",
    "configure_logging",
    "get_logger",
    "log_operation",
    "verify_checksums",
]
