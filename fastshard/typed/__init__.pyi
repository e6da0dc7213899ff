from fastshard.atmosphere.at_uri import AtUri as AtUri
from fastshard.atmosphere.blobs.source import BlobSource as BlobSource
from fastshard.atmosphere.blobs.store import PDSBlobStore as PDSBlobStore
from fastshard.atmosphere.blobs.store import ShardUploadResult as ShardUploadResult
from fastshard.atmosphere.cid import generate_cid as generate_cid
from fastshard.atmosphere.cid import verify_cid as verify_cid
from fastshard.atmosphere.client import Atmosphere as Atmosphere
from fastshard.atmosphere.index import AtmosphereIndex as AtmosphereIndex
from fastshard.atmosphere.index import (
    AtmosphereIndexEntry as AtmosphereIndexEntry,
)
from fastshard.atmosphere.loading.dataset import DatasetLoader as DatasetLoader
from fastshard.atmosphere.loading.label import LabelLoader as LabelLoader
from fastshard.atmosphere.loading.lens import LensLoader as LensLoader
from fastshard.atmosphere.loading.lens import (
    VerificationLoader as VerificationLoader,
)
from fastshard.atmosphere.loading.schema import SchemaLoader as SchemaLoader
from fastshard.atmosphere.promotion import (
    promote_to_atmosphere as promote_to_atmosphere,
)
from fastshard.atmosphere.publishing.dataset import (
    DatasetPublisher as DatasetPublisher,
)
from fastshard.atmosphere.publishing.label import LabelPublisher as LabelPublisher
from fastshard.atmosphere.publishing.lens import LensPublisher as LensPublisher
from fastshard.atmosphere.publishing.lens import (
    VerificationPublisher as VerificationPublisher,
)
from fastshard.atmosphere.publishing.schema import (
    SchemaPublisher as SchemaPublisher,
)
from fastshard.catalog.default import get_default_index as get_default_index
from fastshard.catalog.default import set_default_index as set_default_index
from fastshard.catalog.entry import DatasetEntry as DatasetEntry
from fastshard.catalog.entry import IndexEntry as IndexEntry
from fastshard.catalog.index import Index as AbstractIndex
from fastshard.catalog.index import Index as Index
from fastshard.catalog.loading.load import load_dataset as load_dataset
from fastshard.catalog.providers.create import create_provider as create_provider
from fastshard.catalog.providers.protocol import IndexProvider as IndexProvider
from fastshard.catalog.providers.protocol import LabelRow as LabelRow
from fastshard.catalog.repository import Repository as Repository
from fastshard.catalog.repository import create_repository as create_repository
from fastshard.catalog.schema_calls import LocalSchemaRecord as LocalSchemaRecord
from fastshard.catalog.schema_calls import SchemaNamespace as SchemaNamespace
from fastshard.catalog.search import SearchResult as SearchResult
from fastshard.catalog.search import SearchResults as SearchResults
from fastshard.errors import AppViewError as AppViewError
from fastshard.errors import AppViewRequiredError as AppViewRequiredError
from fastshard.errors import AppViewUnavailableError as AppViewUnavailableError
from fastshard.errors import BlobNotFoundError as BlobNotFoundError
from fastshard.errors import DescriptionError as DescriptionError
from fastshard.errors import FastshardError as AtdataError
from fastshard.errors import FormatError as ShardError
from fastshard.errors import HandleNotFoundError as HandleNotFoundError
from fastshard.errors import IdentityError as IdentityError
from fastshard.errors import LensNotFoundError as LensNotFoundError
from fastshard.errors import PartialFailureError as PartialFailureError
from fastshard.errors import PublishError as PublishError
from fastshard.errors import RecordError as RecordError
from fastshard.errors import RecordNotFoundError as RecordNotFoundError
from fastshard.errors import SampleKeyError as SampleKeyError
from fastshard.errors import SchemaError as SchemaError
from fastshard.errors import SessionError as SessionError
from fastshard.errors import XrpcError as XrpcError
from fastshard.typed import atmosphere as atmosphere
from fastshard.typed import testing as testing
from fastshard.typed.batch import SampleBatch as SampleBatch
from fastshard.typed.checksums import verify_checksums as verify_checksums
from fastshard.typed.dataset import Dataset as Dataset
from fastshard.typed.dict_sample import DictSample as DictSample
from fastshard.typed.fields import Field as Field
from fastshard.typed.lenses.laws import LawFailure as LawFailure
from fastshard.typed.lenses.lens import Lens as Lens
from fastshard.typed.lenses.network import LensNetwork as LensNetwork
from fastshard.typed.lenses.network import lens as lens
from fastshard.typed.loading.dataset_dict import DatasetDict as DatasetDict
from fastshard.typed.logs import LoggerProtocol as LoggerProtocol
from fastshard.typed.logs import configure_logging as configure_logging
from fastshard.typed.logs import get_logger as get_logger
from fastshard.typed.logs import log_operation as log_operation
from fastshard.typed.manifest.builder import ManifestBuilder as ManifestBuilder
from fastshard.typed.manifest.executor import QueryExecutor as QueryExecutor
from fastshard.typed.manifest.executor import SampleLocation as SampleLocation
from fastshard.typed.manifest.fields import ManifestField as ManifestField
from fastshard.typed.manifest.fields import query_fields as query_fields
from fastshard.typed.manifest.shard_manifest import ShardManifest as ShardManifest
from fastshard.typed.manifest.writer import ManifestWriter as ManifestWriter
from fastshard.typed.sample_type import Packable as Packable
from fastshard.typed.sample_type import PackableSample as PackableSample
from fastshard.typed.sample_type import packable as packable
from fastshard.typed.schema import fingerprint as fingerprint
from fastshard.typed.schema import schema_of as schema_of
from fastshard.typed.sources.protocol import DataSource as DataSource
from fastshard.typed.sources.s3 import S3Source as S3Source
from fastshard.typed.sources.url import URLSource as URLSource
from fastshard.typed.stores.disk import LocalDiskStore as LocalDiskStore
from fastshard.typed.stores.protocol import AbstractDataStore as AbstractDataStore
from fastshard.typed.stores.protocol import ShardWriteResult as ShardWriteResult
from fastshard.typed.stores.s3 import S3DataStore as S3DataStore
from fastshard.typed.write.samples import write_samples as write_samples

__all__ = [
    "AbstractDataStore",
    "AbstractIndex",
    "AppViewError",
    "AppViewRequiredError",
    "AppViewUnavailableError",
    "AtUri",
    "AtdataError",
    "Atmosphere",
    "AtmosphereIndex",
    "AtmosphereIndexEntry",
    "BlobNotFoundError",
    "BlobSource",
    "DataSource",
    "Dataset",
    "DatasetDict",
    "DatasetEntry",
    "DatasetLoader",
    "DatasetPublisher",
    "DescriptionError",
    "DictSample",
    "Field",
    "HandleNotFoundError",
    "IdentityError",
    "Index",
    "IndexEntry",
    "IndexProvider",
    "LabelLoader",
    "LabelPublisher",
    "LabelRow",
    "LawFailure",
    "Lens",
    "LensLoader",
    "LensNetwork",
    "LensNotFoundError",
    "LensPublisher",
    "LocalDiskStore",
    "LocalSchemaRecord",
    "LoggerProtocol",
    "ManifestBuilder",
    "ManifestField",
    "ManifestWriter",
    "PDSBlobStore",
    "Packable",
    "PackableSample",
    "PartialFailureError",
    "PublishError",
    "QueryExecutor",
    "RecordError",
    "RecordNotFoundError",
    "Repository",
    "S3DataStore",
    "S3Source",
    "SampleBatch",
    "SampleKeyError",
    "SampleLocation",
    "SchemaError",
    "SchemaLoader",
    "SchemaNamespace",
    "SchemaPublisher",
    "SearchResult",
    "SearchResults",
    "SessionError",
    "ShardError",
    "ShardManifest",
    "ShardUploadResult",
    "ShardWriteResult",
    "URLSource",
    "VerificationLoader",
    "VerificationPublisher",
    "XrpcError",
    "configure_logging",
    "create_provider",
    "create_repository",
    "fingerprint",
    "generate_cid",
    "get_default_index",
    "get_logger",
    "lens",
    "load_dataset",
    "log_operation",
    "packable",
    "promote_to_atmosphere",
    "query_fields",
    "schema_of",
    "set_default_index",
    "verify_checksums",
    "verify_cid",
    "write_samples",
]
