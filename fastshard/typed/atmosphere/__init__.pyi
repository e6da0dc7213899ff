from fastshard.typed.atmosphere.at_uri import AtUri as AtUri
from fastshard.typed.atmosphere.client import Atmosphere as Atmosphere
from fastshard.typed.atmosphere.index import AtmosphereIndex as AtmosphereIndex
from fastshard.typed.atmosphere.index import (
    AtmosphereIndexEntry as AtmosphereIndexEntry,
)
from fastshard.typed.atmosphere.lexicon import NAMESPACE as NAMESPACE
from fastshard.typed.atmosphere.loading.dataset import DatasetLoader as DatasetLoader
from fastshard.typed.atmosphere.loading.label import LabelLoader as LabelLoader
from fastshard.typed.atmosphere.loading.lens import LensLoader as LensLoader
from fastshard.typed.atmosphere.loading.lens import (
    VerificationLoader as VerificationLoader,
)
from fastshard.typed.atmosphere.loading.schema import SchemaLoader as SchemaLoader
from fastshard.typed.atmosphere.promotion import (
    promote_to_atmosphere as promote_to_atmosphere,
)
from fastshard.typed.atmosphere.publishing.dataset import (
    DatasetPublisher as DatasetPublisher,
)
from fastshard.typed.atmosphere.publishing.label import LabelPublisher as LabelPublisher
from fastshard.typed.atmosphere.publishing.lens import LensPublisher as LensPublisher
from fastshard.typed.atmosphere.publishing.lens import (
    VerificationPublisher as VerificationPublisher,
)
from fastshard.typed.atmosphere.publishing.schema import (
    SchemaPublisher as SchemaPublisher,
)
from fastshard.typed.atmosphere.records.checked import UnknownMember as UnknownMember
from fastshard.typed.atmosphere.records.checksum import CodeHash as CodeHash
from fastshard.typed.atmosphere.records.checksum import CodeHash as LexCodeHash
from fastshard.typed.atmosphere.records.checksum import ShardChecksum as ShardChecksum
from fastshard.typed.atmosphere.records.entry import DatasetSize as DatasetSize
from fastshard.typed.atmosphere.records.entry import EntryRecord as EntryRecord
from fastshard.typed.atmosphere.records.entry import EntryRecord as LexDatasetEntry
from fastshard.typed.atmosphere.records.entry import (
    ShardManifestRef as ShardManifestRef,
)
from fastshard.typed.atmosphere.records.label import LabelRecord as LabelRecord
from fastshard.typed.atmosphere.records.label import LabelRecord as LexLabelRecord
from fastshard.typed.atmosphere.records.lens import CodeReference as CodeReference
from fastshard.typed.atmosphere.records.lens import CodeReference as LexCodeReference
from fastshard.typed.atmosphere.records.lens import LensRecord as LensRecord
from fastshard.typed.atmosphere.records.lens import LensRecord as LexLensRecord
from fastshard.typed.atmosphere.records.lens_verification import (
    LensVerificationRecord as LensVerificationRecord,
)
from fastshard.typed.atmosphere.records.lens_verification import (
    LensVerificationRecord as LexLensVerification,
)
from fastshard.typed.atmosphere.records.schema import (
    JsonSchemaFormat as JsonSchemaFormat,
)
from fastshard.typed.atmosphere.records.schema import SchemaRecord as LexSchemaRecord
from fastshard.typed.atmosphere.records.schema import SchemaRecord as SchemaRecord
from fastshard.typed.atmosphere.records.storage import BlobEntry as BlobEntry
from fastshard.typed.atmosphere.records.storage import BlobRef as BlobRef
from fastshard.typed.atmosphere.records.storage import HttpShardEntry as HttpShardEntry
from fastshard.typed.atmosphere.records.storage import S3ShardEntry as S3ShardEntry
from fastshard.typed.atmosphere.records.storage import Storage as Storage
from fastshard.typed.atmosphere.records.storage import Storage as StorageUnion
from fastshard.typed.atmosphere.records.storage import StorageBlobs as StorageBlobs
from fastshard.typed.atmosphere.records.storage import (
    StorageExternal as StorageExternal,
)
from fastshard.typed.atmosphere.records.storage import StorageHttp as StorageHttp
from fastshard.typed.atmosphere.records.storage import StorageS3 as StorageS3
from fastshard.typed.atmosphere.records.storage import (
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
