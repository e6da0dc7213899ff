from fastshard import adapters as adapters
from fastshard import columnar as columnar
from fastshard import errors as errors
from fastshard import formats as formats
from fastshard import streaming as streaming
from fastshard import typed as typed
from fastshard._core.dataset.shard import Shard as Shard
from fastshard._util.paths.remote_options import RemoteOptions as RemoteOptions
from fastshard.adapters.webshart.batch import BatchProcessor as BatchProcessor
from fastshard.adapters.webshart.batch import read_files_batch as read_files_batch
from fastshard.adapters.webshart.discover import DiscoveredDataset as DiscoveredDataset
from fastshard.adapters.webshart.discover import ShardReader as ShardReader
from fastshard.adapters.webshart.discover import discover_dataset as discover_dataset
from fastshard.adapters.webshart.discover import (
    discover_dataset_async as discover_dataset_async,
)
from fastshard.adapters.webshart.discover import (
    discover_datasets_batch as discover_datasets_batch,
)
from fastshard.conversion.convert import Converted as Converted
from fastshard.conversion.convert import convert as convert
from fastshard.dataset.build_index import build_index as build_index
from fastshard.dataset.build_index import merge_indexes as merge_indexes
from fastshard.dataset.combine import Concat as Concat
from fastshard.dataset.combine import Mix as Mix
from fastshard.dataset.combine import Zip as Zip
from fastshard.dataset.combine import mix as mix
from fastshard.dataset.combine import zip_by_key as zip_by_key
from fastshard.dataset.dataset import Dataset as Dataset
from fastshard.dataset.open import open as open  # noqa: A004
from fastshard.dataset.sequence.batch import collate as collate
from fastshard.dataset.sequence.iteration import BatchIterator as BatchIterator
from fastshard.dataset.sequence.iteration import SampleIterator as SampleIterator
from fastshard.errors import AmbiguousKeyError as AmbiguousKeyError
from fastshard.errors import AppViewError as AppViewError
from fastshard.errors import AppViewRequiredError as AppViewRequiredError
from fastshard.errors import AppViewUnavailableError as AppViewUnavailableError
from fastshard.errors import BlobNotFoundError as BlobNotFoundError
from fastshard.errors import CacheWarning as CacheWarning
from fastshard.errors import ClosedError as ClosedError
from fastshard.errors import ConversionError as ConversionError
from fastshard.errors import DescriptionError as DescriptionError
from fastshard.errors import FastshardError as FastshardError
from fastshard.errors import FieldNotFoundError as FieldNotFoundError
from fastshard.errors import FormatError as FormatError
from fastshard.errors import HandleNotFoundError as HandleNotFoundError
from fastshard.errors import IdentityError as IdentityError
from fastshard.errors import IndexRowError as IndexRowError
from fastshard.errors import InfoNotFoundError as InfoNotFoundError
from fastshard.errors import LensNotFoundError as LensNotFoundError
from fastshard.errors import MemberNotFoundError as MemberNotFoundError
from fastshard.errors import MissingLibraryError as MissingLibraryError
from fastshard.errors import PartialFailureError as PartialFailureError
from fastshard.errors import PublishError as PublishError
from fastshard.errors import QueryError as QueryError
from fastshard.errors import QueryTimeoutError as QueryTimeoutError
from fastshard.errors import RaggedError as RaggedError
from fastshard.errors import RecordError as RecordError
from fastshard.errors import RecordNotFoundError as RecordNotFoundError
from fastshard.errors import RemoteError as RemoteError
from fastshard.errors import RemoteNotFoundError as RemoteNotFoundError
from fastshard.errors import RemoteShardNotFoundError as RemoteShardNotFoundError
from fastshard.errors import SampleKeyError as SampleKeyError
from fastshard.errors import SampleNotFoundError as SampleNotFoundError
from fastshard.errors import SchemaError as SchemaError
from fastshard.errors import SessionError as SessionError
from fastshard.errors import ShardNotFoundError as ShardNotFoundError
from fastshard.errors import StaleIndexError as StaleIndexError
from fastshard.errors import StaleIndexWarning as StaleIndexWarning
from fastshard.errors import StaleShardError as StaleShardError
from fastshard.errors import StateError as StateError
from fastshard.errors import UnclosedWriterWarning as UnclosedWriterWarning
from fastshard.errors import UnreadEntryWarning as UnreadEntryWarning
from fastshard.errors import WriterLockedError as WriterLockedError
from fastshard.errors import XrpcError as XrpcError
from fastshard.formats.field_info import FieldInfo as FieldInfo
from fastshard.formats.sample import Sample as Sample
from fastshard.formats.sample import Samples as Samples
from fastshard.formats.tar import TarShard as TarShard
from fastshard.formats.tar import open_shard as open_shard
from fastshard.formats.writer import ShardWriter as ShardWriter
from fastshard.loader.loader import Loader as Loader
from fastshard.loader.stats import LoaderStats as LoaderStats

__all__ = [
    "AmbiguousKeyError",
    "AppViewError",
    "AppViewRequiredError",
    "AppViewUnavailableError",
    "BatchIterator",
    "BatchProcessor",
    "BlobNotFoundError",
    "CacheWarning",
    "ClosedError",
    "Concat",
    "ConversionError",
    "Converted",
    "Dataset",
    "DescriptionError",
    "DiscoveredDataset",
    "FastshardError",
    "FieldInfo",
    "FieldNotFoundError",
    "FormatError",
    "HandleNotFoundError",
    "IdentityError",
    "IndexRowError",
    "InfoNotFoundError",
    "LensNotFoundError",
    "Loader",
    "LoaderStats",
    "MemberNotFoundError",
    "MissingLibraryError",
    "Mix",
    "PartialFailureError",
    "PublishError",
    "QueryError",
    "QueryTimeoutError",
    "RaggedError",
    "RecordError",
    "RecordNotFoundError",
    "RemoteError",
    "RemoteNotFoundError",
    "RemoteOptions",
    "RemoteShardNotFoundError",
    "Sample",
    "SampleIterator",
    "SampleKeyError",
    "SampleNotFoundError",
    "Samples",
    "SchemaError",
    "SessionError",
    "Shard",
    "ShardNotFoundError",
    "ShardReader",
    "ShardWriter",
    "StaleIndexError",
    "StaleIndexWarning",
    "StaleShardError",
    "StateError",
    "TarShard",
    "UnclosedWriterWarning",
    "UnreadEntryWarning",
    "WriterLockedError",
    "XrpcError",
    "Zip",
    "build_index",
    "collate",
    "convert",
    "discover_dataset",
    "discover_dataset_async",
    "discover_datasets_batch",
    "merge_indexes",
    "mix",
    "open",
    "open_shard",
    "read_files_batch",
    "zip_by_key",
]

__version__: str
