"""Records of the AT Protocol network: client, publishers and loaders."""

from importlib import import_module
from sys import modules
from typing import Any

_HOMES: dict[str, str] = {  # names by their modules, imported when a name is asked for
    "at_uri": "AtUri",
    "client": "Atmosphere",
    "index": "AtmosphereIndex AtmosphereIndexEntry",
    "lexicon": "NAMESPACE",
    "loading.dataset": "DatasetLoader",
    "loading.label": "LabelLoader",
    "loading.lens": "LensLoader VerificationLoader",
    "loading.schema": "SchemaLoader",
    "promotion": "promote_to_atmosphere",
    "publishing.dataset": "DatasetPublisher",
    "publishing.label": "LabelPublisher",
    "publishing.lens": "LensPublisher VerificationPublisher",
    "publishing.schema": "SchemaPublisher",
    "records.checked": "UnknownMember",
    "records.checksum": "CodeHash ShardChecksum",
    "records.entry": "DatasetSize EntryRecord ShardManifestRef",
    "records.label": "LabelRecord",
    "records.lens": "CodeReference LensRecord",
    "records.lens_verification": "LensVerificationRecord",
    "records.schema": "JsonSchemaFormat SchemaRecord",
    "records.storage": "BlobEntry BlobRef HttpShardEntry S3ShardEntry Storage "
    "StorageBlobs StorageExternal StorageHttp StorageS3 storage_from_record",
}
_ALIASES = {  # the names of atdata
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
    module = import_module(f"{__name__}.{_MODULES[known]}")
    value = globals()[name] = getattr(module, known)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
