"""Records of the AT Protocol network: client, publishers and loaders."""

from importlib import import_module
from sys import modules
from typing import Any

_HOMES: dict[str, str] = {  # names by their modules, which are imported at first use
    "atmosphere.at_uri": "AtUri",
    "atmosphere.client": "Atmosphere",
    "atmosphere.index": "AtmosphereIndex AtmosphereIndexEntry",
    "atmosphere.lexicon": "NAMESPACE",
    "atmosphere.loading.dataset": "DatasetLoader",
    "atmosphere.loading.label": "LabelLoader",
    "atmosphere.loading.lens": "LensLoader VerificationLoader",
    "atmosphere.loading.schema": "SchemaLoader",
    "atmosphere.promotion": "promote_to_atmosphere",
    "atmosphere.publishing.dataset": "DatasetPublisher",
    "atmosphere.publishing.label": "LabelPublisher",
    "atmosphere.publishing.lens": "LensPublisher VerificationPublisher",
    "atmosphere.publishing.schema": "SchemaPublisher",
    "atmosphere.records.checked": "UnknownMember",
    "atmosphere.records.checksum": "CodeHash ShardChecksum",
    "atmosphere.records.entry": "DatasetSize EntryRecord ShardManifestRef",
    "atmosphere.records.label": "LabelRecord",
    "atmosphere.records.lens": "CodeReference LensRecord",
    "atmosphere.records.lens_verification": "LensVerificationRecord",
    "atmosphere.records.schema": "JsonSchemaFormat SchemaRecord",
    "atmosphere.records.storage": "BlobEntry BlobRef HttpShardEntry S3ShardEntry "
    "Storage StorageBlobs StorageExternal StorageHttp StorageS3 storage_from_record",
}
_ALIASES = {  # names as in atdata
    "LexCodeHash": "CodeHash",
    "LexCodeReference": "CodeReference",
    "LexDatasetEntry": "EntryRecord",
    "LexLabelRecord": "LabelRecord",
    "LexLensRecord": "LensRecord",
    "LexLensVerification": "LensVerificationRecord",
    "LexSchemaRecord": "SchemaRecord",
    "StorageUnion": "Storage",
}
_MODULES = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = sorted([*_MODULES, *_ALIASES])


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    known = _ALIASES.get(name, name)
    if known not in _MODULES:
        from fastshard._util.hints import missing_name

        raise missing_name(name, modules[__name__])
    module = import_module(f"fastshard.{_MODULES[known]}")
    value = globals()[name] = getattr(module, known)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
