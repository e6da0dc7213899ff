"""Modules of the public names, imported when a name is first used."""

__all__ = ["HOMES"]

HOMES = {
    "_core.dataset.shard": "Shard",
    "conversion.convert": "Converted convert",
    "adapters.webshart.batch": "BatchProcessor read_files_batch",
    "adapters.webshart.discover": (
        "DiscoveredDataset ShardReader discover_dataset "
        "discover_dataset_async discover_datasets_batch"
    ),
    "dataset.sequence.batch": "collate",
    "dataset.build_index": "build_index merge_indexes",
    "dataset.combine": "Concat Mix Zip mix zip_by_key",
    "dataset.dataset": "Dataset",
    "dataset.sequence.iteration": "BatchIterator SampleIterator",
    "dataset.open": "open",
    "errors": (
        "AmbiguousKeyError AppViewError AppViewRequiredError AppViewUnavailableError "
        "BlobNotFoundError CacheWarning ClosedError ConversionError DescriptionError "
        "FastshardError FieldNotFoundError FormatError HandleNotFoundError "
        "IdentityError IndexRowError InfoNotFoundError LensNotFoundError "
        "MemberNotFoundError MissingLibraryError PartialFailureError PublishError "
        "QueryError QueryTimeoutError RaggedError RecordError RecordNotFoundError "
        "RemoteError RemoteNotFoundError RemoteShardNotFoundError SampleKeyError "
        "SampleNotFoundError SchemaError SessionError ShardNotFoundError "
        "StaleIndexError StaleIndexWarning StaleShardError StateError "
        "UnclosedWriterWarning UnreadEntryWarning WriterLockedError XrpcError"
    ),
    "formats.field_info": "FieldInfo",
    "formats.sample": "Sample Samples",
    "formats.tar": "TarShard open_shard",
    "formats.writer": "ShardWriter",
    "loader.loader": "Loader",
    "loader.stats": "LoaderStats",
    "_util.paths.remote_options": "RemoteOptions",
}
