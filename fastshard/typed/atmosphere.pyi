from fastshard.atmosphere.at_uri import AtUri as AtUri
from fastshard.atmosphere.client import Atmosphere as Atmosphere
from fastshard.atmosphere.index import AtmosphereIndex as AtmosphereIndex
from fastshard.atmosphere.index import (
    AtmosphereIndexEntry as AtmosphereIndexEntry,
)
from fastshard.atmosphere.lexicon import NAMESPACE as NAMESPACE
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
from fastshard.atmosphere.records.checked import UnknownMember as UnknownMember
from fastshard.atmosphere.records.checksum import CodeHash as CodeHash
from fastshard.atmosphere.records.checksum import CodeHash as LexCodeHash
from fastshard.atmosphere.records.checksum import ShardChecksum as ShardChecksum
from fastshard.atmosphere.records.entry import DatasetSize as DatasetSize
from fastshard.atmosphere.records.entry import EntryRecord as EntryRecord
from fastshard.atmosphere.records.entry import EntryRecord as LexDatasetEntry
from fastshard.atmosphere.records.entry import (
    ShardManifestRef as ShardManifestRef,
)
from fastshard.atmosphere.records.label import LabelRecord as LabelRecord
from fastshard.atmosphere.records.label import LabelRecord as LexLabelRecord
from fastshard.atmosphere.records.lens import CodeReference as CodeReference
from fastshard.atmosphere.records.lens import CodeReference as LexCodeReference
from fastshard.atmosphere.records.lens import LensRecord as LensRecord
from fastshard.atmosphere.records.lens import LensRecord as LexLensRecord
from fastshard.atmosphere.records.lens_verification import (
    LensVerificationRecord as LensVerificationRecord,
)
from fastshard.atmosphere.records.lens_verification import (
    LensVerificationRecord as LexLensVerification,
)
from fastshard.atmosphere.records.schema import (
    JsonSchemaFormat as JsonSchemaFormat,
)
from fastshard.atmosphere.records.schema import SchemaRecord as LexSchemaRecord
from fastshard.atmosphere.records.schema import SchemaRecord as SchemaRecord
from fastshard.atmosphere.records.storage import BlobEntry as BlobEntry
from fastshard.atmosphere.records.storage import BlobRef as BlobRef
from fastshard.atmosphere.records.storage import HttpShardEntry as HttpShardEntry
from fastshard.atmosphere.records.storage import S3ShardEntry as S3ShardEntry
from fastshard.atmosphere.records.storage import Storage as Storage
from fastshard.atmosphere.records.storage import Storage as StorageUnion
from fastshard.atmosphere.records.storage import StorageBlobs as StorageBlobs
from fastshard.atmosphere.records.storage import (
    StorageExternal as StorageExternal,
)
from fastshard.atmosphere.records.storage import StorageHttp as StorageHttp
from fastshard.atmosphere.records.storage import StorageS3 as StorageS3
from fastshard.atmosphere.records.storage import (
    storage_from_record as storage_from_record,
)

__all__ = [
    "NAMESPACE",
    "AtUri",
    "Atmosphere",
    "AtmosphereIndex",
    "AtmosphereIndexEntry",
    "BlobEntry",
    "BlobRef",
    "CodeHash",
    "CodeReference",
    "DatasetLoader",
    "DatasetPublisher",
    "DatasetSize",
    "EntryRecord",
    "HttpShardEntry",
    "JsonSchemaFormat",
    "LabelLoader",
    "LabelPublisher",
    "LabelRecord",
    "LensLoader",
    "LensPublisher",
    "LensRecord",
    "LensVerificationRecord",
    "LexCodeHash",
    "LexCodeReference",
    "LexDatasetEntry",
    "LexLabelRecord",
    "LexLensRecord",
    "LexLensVerification",
    "LexSchemaRecord",
    "S3ShardEntry",
    "SchemaLoader",
    "SchemaPublisher",
    "SchemaRecord",
    "ShardChecksum",
    "ShardManifestRef",
    "Storage",
    "StorageBlobs",
    "StorageExternal",
    "StorageHttp",
    "StorageS3",
    "StorageUnion",
    "UnknownMember",
    "VerificationLoader",
    "VerificationPublisher",
    "promote_to_atmosphere",
    "storage_from_record",
]
