"""Modules of the public names, imported when a name is first used."""

__all__ = ["HOMES"]

HOMES = {
    "errors": "AppViewError AppViewRequiredError AppViewUnavailableError "
    "BlobNotFoundError HandleNotFoundError IdentityError LensNotFoundError "
    "PartialFailureError RecordError RecordNotFoundError SampleKeyError "
    "SchemaError SessionError XrpcError",
    "atmosphere.at_uri": "AtUri",
    "atmosphere.client": "Atmosphere",
    "batch": "SampleBatch",
    "checksums": "verify_checksums",
    "cid": "generate_cid verify_cid",
    "dataset": "Dataset",
    "dict_sample": "DictSample",
    "fields": "Field",
    "index.default": "get_default_index set_default_index",
    "index.entry": "DatasetEntry",
    "index.index": "Index",
    "index.providers.create": "create_provider",
    "index.providers.protocol": "IndexProvider LabelRow",
    "index.repository": "Repository create_repository",
    "index.search": "SearchResult SearchResults",
    "lenses.laws": "LawFailure",
    "lenses.lens": "Lens",
    "lenses.network": "LensNetwork lens",
    "loading.dataset_dict": "DatasetDict",
    "loading.load": "load_dataset",
    "logs": "LoggerProtocol configure_logging get_logger log_operation",
    "manifest.builder": "ManifestBuilder",
    "manifest.executor": "QueryExecutor SampleLocation",
    "manifest.fields": "ManifestField",
    "manifest.predicate": "query_fields",
    "manifest.shard_manifest": "ShardManifest",
    "manifest.writer": "ManifestWriter",
    "sample_type": "Packable PackableSample packable",
    "schema": "fingerprint schema_of",
    "sources.blob": "BlobSource",
    "sources.protocol": "DataSource",
    "sources.s3": "S3Source",
    "sources.url": "URLSource",
    "stores.disk": "LocalDiskStore",
    "stores.protocol": "AbstractDataStore ShardWriteResult",
    "stores.s3": "S3DataStore",
    "write.samples": "write_samples",
}
