"""Tests of atdata that are not run on `fastshard.typed`, or must fail there, by name.

A name is that of a file, a class, a test, or a test with its parameters.
"""

from __future__ import annotations

MOCK = "mocks of atdata's own for tests"
REPO = "the class Repo, which atdata deprecates"
S3FS = "the class S3FileSystem of s3fs"
PRIVATE = "private functions, which are others here, or mocks of them"
ATTRIBUTE = "a private attribute"
NO_RECORD = "at://test and at://x are URIs of no record"
VERSIONS = "equal fields make no new version of a schema"
SAME = "a call by its former name is not deprecated"
COMMANDS = "the command line is fastshard's own"
LIBRARY = "boto3 and requests do not read here"
FACTS = "errors are made of other facts: reason, path, byte, member"
AT_ONCE = "files that are not there are an error at once"
REPO_TESTS = (
    "test_repo_init_no_s3",
    "test_repo_init_with_s3_dict",
    "test_repo_init_with_s3_path",
    "test_repo_init_s3_without_hive_path",
    "test_repo_init_hive_path_parsing",
    "test_repo_init_with_custom_redis",
    "test_repo_insert_without_s3",
    "test_repo_insert_single_shard",
    "test_repo_insert_multiple_shards",
    "test_repo_insert_with_metadata",
    "test_repo_insert_without_metadata",
    "test_repo_insert_cache_local_false",
    "test_repo_insert_cache_local_true",
    "test_repo_insert_creates_index_entry",
    "test_repo_insert_cid_generation",
    "test_repo_insert_empty_dataset",
    "test_repo_insert_preserves_sample_type",
    "test_repo_insert_with_shard_writer_kwargs",
    "test_repo_insert_numpy_arrays",
    "test_repo_index_integration",
    "test_multiple_datasets_same_type",
    "test_multiple_datasets_different_types",
)
# Tests of what is not there, by file, class or name: not run.
ABSENT: dict[str, str] = {
    "test_testing.py::TestMockAtmosphere": MOCK,
    "test_index_write.py::TestIndexPromoteEntry::test_missing_entry_raises": PRIVATE,
    "test_index_write.py::TestIndexPromoteEntry"
    "::test_promote_entry_calls_atmosphere": PRIVATE,
    "test_index_write.py::TestHelpers": PRIVATE,
    "test_index_write.py::TestAtmosphereSizeGuards": PRIVATE,
    "test_index_write.py::TestInsertDatasetAtmosphere": PRIVATE,
    "test_hf_api.py::TestIsIndexedPath": PRIVATE,
    "test_hf_api.py::TestParseIndexedPath": PRIVATE,
    "test_hf_api.py::TestIsAtUri": PRIVATE,
    "test_hf_api.py::TestResolveAtUri": PRIVATE,
    "test_hf_api.py::TestLoadDatasetWithAtUri": PRIVATE,
    "test_sources.py::TestBlobSource::test_resolve_pds_endpoint_uses_cache": PRIVATE,
    "test_sources.py::TestBlobSource"
    "::test_resolve_pds_endpoint_uses_provided_endpoint": PRIVATE,
    "test_sources.py::TestBlobSource::test_get_blob_url": PRIVATE,
    "test_sources.py::TestBlobSource::test_shards_fetches_blobs": LIBRARY,
    "test_sources.py::TestBlobSource::test_open_shard_fetches_single_blob": LIBRARY,
    "test_local.py::test_s3_from_credentials_with_dict": S3FS,
    "test_local.py::test_s3_from_credentials_with_path": S3FS,
    "test_local.py::test_kind_str_for_sample_type": PRIVATE,
    **dict.fromkeys((f"test_local.py::{name}" for name in REPO_TESTS), REPO),
    "test_workflow_local.py::TestFullRepoWorkflow": REPO,
    "test_workflow_local.py::TestCacheLocalModes": REPO,
    "test_workflow_local.py::TestMultiShardStorage": REPO,
    "test_workflow_local.py::TestMetadataPersistence"
    "::test_metadata_preserved_through_insert": REPO,
    "test_sources.py::TestS3Source::test_shards_uses_boto3": LIBRARY,
    "test_sources.py::TestS3Source::test_open_shard_uses_boto3": LIBRARY,
    "test_sources.py::TestS3Source::test_client_uses_endpoint": LIBRARY,
    "test_sources.py::TestS3Source::test_client_caching": LIBRARY,
    "test_dataset.py::test_dataset_metadata_property": LIBRARY,
    "test_dev_experience.py::TestCLIInspect": COMMANDS,
    "test_dev_experience.py::TestCLIPreview": COMMANDS,
    "test_dev_experience.py::TestCLISchema": COMMANDS,
    "test_dev_experience.py::TestCLIArgparse": COMMANDS,
}
# Tests that must fail here, with the reason.
DIFFERENT: dict[str, str] = {
    "test_dataset.py::test_batch_aggregate_empty": "a private function",
    "test_dataset.py::test_dataset_invalid_batch_size": (
        "batch_size=0 is a ValueError that names it, no IndexError inside"
    ),
    "test_dev_experience.py::TestExceptions::test_lens_not_found_error_message": FACTS,
    "test_dev_experience.py::TestExceptions"
    "::test_lens_not_found_error_with_available": FACTS,
    "test_dev_experience.py::TestExceptions::test_schema_error_message": FACTS,
    "test_dev_experience.py::TestExceptions::test_sample_key_error_message": FACTS,
    "test_dev_experience.py::TestExceptions::test_shard_error_message": FACTS,
    "test_hf_api.py::TestShardsToWdsUrl": "a list of shards stays a list",
    "test_hf_api.py::TestExpandLocalGlob::test_ignores_directories": (
        "a directory that a pattern matches is refused when shards are listed"
    ),
    "test_hf_api.py::TestResolveDataFiles": AT_ONCE,
    "test_hf_api.py::TestResolveShards::test_brace_pattern_passthrough": AT_ONCE,
    "test_hf_api.py::TestResolveShards::test_brace_pattern_with_split_name": AT_ONCE,
    "test_hf_api.py::TestResolveShards::test_single_file": AT_ONCE,
    "test_hf_api.py::TestResolveShards::test_with_data_files_override": AT_ONCE,
    "test_helpers.py::TestBytesToArrayBoundsChecking": (
        "errors say what is cut off, and where"
    ),
    "test_logging.py::TestGetLogger::test_default_is_stdlib": (
        "the logger is named fastshard"
    ),
    "test_local.py::test_s3_env_missing_required_field[AWS_ENDPOINT-"
    "AWS_ACCESS_KEY_ID=minioadmin\\nAWS_SECRET_ACCESS_KEY=minioadmin\\n]": (
        "a store without an endpoint is that of Amazon"
    ),
    "test_local.py::test_s3_datastore_init": ATTRIBUTE,
    "test_local.py::test_index_init_with_redis_connection": ATTRIBUTE,
    "test_local.py::test_index_init_with_redis_kwargs": ATTRIBUTE,
    "test_local.py::test_schema_ndarray_field": (
        "an array without a dtype has none in the schema, in place of float32"
    ),
    "test_local.py::test_schema_to_type_use_cache_false": "a schema has one type",
    "test_local.py::test_publish_schema_auto_increment": VERSIONS,
    "test_index_providers.py::TestIndexWithProvider"
    "::test_index_schema_auto_version": VERSIONS,
    "test_index_write.py::TestIndexWrite::test_write_with_maxcount": (
        "maxcount is honoured: the first URL is not all samples"
    ),
    "test_index_write.py::TestDeprecationWarnings": SAME,
    "test_protocols.py::TestProtocolInteroperability"
    "::test_index_entry_properties_consistent": NO_RECORD,
    "test_protocols.py::TestPolymorphicBehavior::test_index_entry_in_dict_key": (
        NO_RECORD
    ),
    "test_protocols.py::TestPolymorphicBehavior::test_generic_url_collector": NO_RECORD,
    "test_hf_api.py::TestLoadDatasetWithIndex"
    "::test_indexed_path_creates_s3source_with_credentials": "a mock of an index",
    "test_atproto_live.py::TestErrorHandling::test_full_e2e_with_local_fixture": (
        "a file of this machine is no public URL"
    ),
    "test_workflow_e2e.py::TestMetadataRoundTrip"
    "::test_dataset_with_metadata_url": LIBRARY,
}
