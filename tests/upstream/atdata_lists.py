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
TEXTS = "errors have other texts, or are of another class"
MOCKED = "mocks of redis, psycopg or a client; the live tests run on servers"
SILENT = "a network that is not there is an error, not an empty list"
SCHEMA_TYPES = "a schema has one type in a process"
STUBS = "stubs have other text, keyword arguments and no Any"
VERSIONS = "equal fields make no new version of a schema"
SAME = "a call by its former name is not deprecated"
COMMANDS = "the command line is fastshard's own"
BACKENDS = "a search is a method of an index, not a backend"
SDK = "a mock of the SDK atproto: requests are sent without it"
STRICT = "a record without its $type or a required field is refused"
OBJECTS = "parts of a record are objects of their classes, not dicts"
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
# Files of the release that are not run.
NOT_RUN: dict[str, str] = {
    "test_atproto_compat.py": SDK,
    "test_cli.py": COMMANDS,
    "test_postgres_provider.py": "mocks of psycopg; integration/test_postgres_live.py "
    "runs on a server",
    "test_stub_manager.py": PRIVATE,
    "test_type_utils.py": PRIVATE,
}
# Names that are not there, by reason: tests that call one are skipped.
NAMES: dict[str, str] = {
    MOCK: "MockAtmosphere",
    PRIVATE: "SchemaFieldType _make_packable FieldType FieldDef "
    "StorageLocation _parse_handle_schema_ref _json_schema_prop_to_field_type "
    "_field_type_to_stub_str _field_type_to_python "
    "_find_or_publish_schema _find_existing_schema _did_web_to_url _url_to_did_web "
    "_packable_to_dict _resolve_indexed_path _resolve_pds_endpoint "
    "_AtmosphereBackend _deduplicate _detect_field_mapping _resolve_function_ref "
    "generate_lens_stub DatasetMetadata",
    BACKENDS: "AppViewSearchBackend LocalSearchBackend SearchAggregator SearchBackend",
}


def listed(reason: str, file: str, names: str) -> dict[str, str]:
    """Return the reason by test; ``A:b,c`` stands for tests b and c of the class A."""
    found = {}
    for each in names.split():
        group, _, tests = each.partition(":")
        for test in tests.split(","):
            found["::".join(filter(None, (file, group, test)))] = reason
    return found


# Tests of absent features, by file, class or name: not run.
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
    **listed(
        *(MOCKED, "test_labels.py"),
        "TestRedisProviderLabels TestRedisProviderSchemaEdgeCases "
        "TestPostgresProviderLabels",
    ),
    **listed(MOCKED, "test_promote.py", "TestPromoteToAtmosphere"),
    **listed(MOCKED, "test_workflow.py", "TestLocalToAtmosphereRoundTrip"),
    **listed(PRIVATE, "test_repository.py", "TestResolvePrefix"),
    **listed(
        PRIVATE, "test_content_metadata.py", "TestDatasetPublisherContentMetadata"
    ),
    **listed(PRIVATE, "test_lens_persistence.py", "TestIndexLensStubs"),
    **listed(LIBRARY, "test_workflow_error_handling.py", "TestS3ErrorSimulation"),
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
        "an array without a dtype is absent from the schema, in place of float32"
    ),
    "test_local.py::test_schema_to_type_use_cache_false": SCHEMA_TYPES,
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
        "a file of this machine is not a public URL"
    ),
    "test_workflow_e2e.py::TestMetadataRoundTrip"
    "::test_dataset_with_metadata_url": LIBRARY,
    **listed(
        *(MOCKED, "test_appview.py"),
        "TestAtmosphereAppView:test_login_with_appview,test_from_session_with_appview,"
        "test_from_env",
    ),
    **listed(
        *(TEXTS, "test_array_formats.py"),
        "TestStructuredArraySerialization:test_rejects_plain_ndarray,"
        "test_rejects_non_ndarray "
        "TestDataFrameSerialization:test_rejects_non_dataframe "
        "TestSparseSerialization:test_rejects_non_sparse "
        "TestArrowTensorSerialization:test_rejects_non_tensor "
        "TestSafetensorsSerialization:test_rejects_non_dict",
    ),
    **listed(
        *(ATTRIBUTE, "test_array_formats.py"),
        "TestSchemaToTypeFormats:test_ndarray_annotations_set,"
        "test_no_annotations_when_absent",
    ),
    **listed(
        *(TEXTS, "test_atmosphere.py"),
        "TestAtUri:test_parse_uri_with_slashes_in_rkey,"
        "test_parse_invalid_uri_no_protocol,test_parse_invalid_uri_missing_parts "
        "TestStorageFromRecord:test_missing_type_raises",
    ),
    **listed(
        *(STRICT, "test_atmosphere.py"),
        "TestLexSchemaRecord:test_from_record_reads_new_key,"
        "test_from_record_backward_compat_old_key,"
        "test_from_record_defaults_to_1_when_absent,"
        "test_from_record_new_key_takes_precedence_over_old "
        "TestLexDatasetEntry:test_metadata_legacy_bytes_roundtrip,"
        "test_metadata_legacy_raw_bytes "
        "TestLexDatasetEntryManifests:test_without_manifests_roundtrip,"
        "test_empty_manifests_roundtrip "
        "TestAtmosphereIndexEntry:test_data_urls_resolves_storage_blobs",
    ),
    **listed(
        *(OBJECTS, "test_atmosphere.py"),
        "TestLexDatasetEntry:test_to_record_blob_storage TestShardManifestRef "
        "TestLexDatasetEntryManifests:test_with_manifests_to_record,"
        "test_with_manifests_roundtrip "
        "TestStorageFromRecord:test_blobs_roundtrip,test_blobs_roundtrip_no_checksum",
    ),
    **listed(
        *(PRIVATE, "test_atmosphere.py"),
        "TestDatasetMetadata:test_from_dict_unknown_keys_go_to_custom,"
        "test_from_dict_empty_string_preserved,test_from_dict_empty_list_preserved,"
        "test_from_dict_camel_takes_precedence,test_from_dict_explicit_custom_merged "
        "TestAtmosphere:test_init_default,test_init_with_base_url "
        "TestAtmosphereClientEdgeCases:test_login_classmethod,"
        "test_from_session_classmethod",
    ),
    **listed(
        *("an unknown storage is kept as it is", "test_atmosphere.py"),
        "TestStorageFromRecord:test_legacy_storage_external,test_unknown_type_raises",
    ),
    **listed(
        NO_RECORD,
        "test_atmosphere.py",
        "TestAtmosphereIndexEntry:test_entry_empty_storage",
    ),
    **listed(
        *(PRIVATE, "test_atmosphere_label_integration.py"),
        "TestAtmosphereBackendResolveLabel:test_resolve_label_method_exists",
    ),
    **listed(
        *("a record of the AT Protocol holds no float", "test_content_metadata.py"),
        "TestLexDatasetEntryContentMetadata:test_to_record_includes_content_metadata,"
        "test_roundtrip_with_content_metadata",
    ),
    **listed(
        *(STRICT, "test_content_metadata.py"),
        "TestLexDatasetEntryContentMetadata:test_roundtrip_without_content_metadata",
    ),
    **listed(
        *(MOCKED, "test_coverage_gaps.py"),
        "TestProviderFactory:test_create_postgres_with_dsn,"
        "test_create_postgresql_alias,test_redis_creates_new_connection "
        "TestIndexEdgeCases:test_get_schema_atmosphere_ref_routes_to_backend,"
        "test_insert_dataset_atmosphere_path,test_get_dataset_atmosphere_path,"
        "test_list_datasets_atmosphere_repo",
    ),
    **listed(
        *(PRIVATE, "test_coverage_gaps.py"),
        "TestDictSampleEdges:test_getattr_data_recursion_guard "
        "TestDatasetEdgeCases:test_schema_returns_empty_for_non_dataclass "
        "TestIndexEdgeCases:test_redis_property_on_sqlite_raises",
    ),
    **listed(
        *(SILENT, "test_coverage_gaps.py"),
        "TestIndexEdgeCases:test_list_datasets_no_atmosphere_returns_empty",
    ),
    **listed(
        *(SILENT, "test_repository.py"),
        "TestCrossRepoOperations:test_list_datasets_atmosphere_disabled_returns_empty",
    ),
    **listed(SAME, "test_repository.py", "TestAtmosphereIndexDeprecation"),
    **listed(
        *("times of records have microseconds", "test_labels.py"),
        "TestLexLabelRecord:test_round_trip_full",
    ),
    **listed(
        *(TEXTS, "test_lens_persistence.py"),
        "TestEdgeCases:test_reconstitute_missing_getter_key_raises",
    ),
    **listed(
        *(STRICT, "test_lexicon_types_verification.py"),
        "TestLexCodeHash:test_from_record_missing_digest,"
        "test_from_record_missing_algorithm,test_from_record_empty_dict "
        "TestLexLensVerification:test_from_record_missing_lens_commit,"
        "test_from_record_missing_verification_method,"
        "test_from_record_missing_created_at,test_from_record_ignores_unknown_keys",
    ),
    **listed(
        *(BACKENDS, "test_search.py"),
        "TestSearchResults:test_empty "
        "TestSearchBackendProtocol:test_custom_backend_satisfies_protocol "
        "TestExports:test_search_backend_importable,"
        "test_appview_search_backend_importable,test_local_search_backend_importable,"
        "test_search_aggregator_importable",
    ),
    **listed(
        *(MOCKED, "test_search.py"),
        "TestIndexSearch:test_search_with_atmosphere_appview",
    ),
    **listed(
        *(NO_RECORD, "test_workflow_atmosphere.py"),
        "TestAtmosphereIndex:test_entry_from_record_has_properties,"
        "test_entry_metadata_unpacking "
        "TestExternalStorageUrls:test_entry_extracts_external_urls",
    ),
    **listed(
        *(TEXTS, "test_workflow_atmosphere.py"),
        "TestErrorHandling:test_uri_missing_parts_raises",
    ),
    **listed(
        *(NO_RECORD, "test_workflow_cross_backend.py"),
        "TestIndexEntryProtocol:test_entries_work_with_common_function,"
        "test_entries_with_metadata,test_entries_with_multiple_urls",
    ),
    **listed(
        *(SCHEMA_TYPES, "test_workflow_dynamic_types.py"),
        "TestTypeCaching:test_different_fields_different_type,"
        "test_use_cache_false_bypasses_cache,test_clear_cache_removes_types",
    ),
    **listed(
        *(STUBS, "test_workflow_dynamic_types.py"),
        "TestGenerateStub:test_basic_stub_generation,"
        "test_stub_includes_header_comments,test_stub_includes_imports,"
        "test_stub_with_ref_field_uses_any",
    ),
    **listed(
        *(TEXTS, "test_workflow_error_handling.py"),
        "TestMalformedMsgpack TestCorruptedTar "
        "TestTimeoutScenarios:test_redis_socket_timeout "
        "TestPartialFailures:test_multi_shard_with_corrupted_shard",
    ),
    **listed(
        *("a version is a semantic one", "test_workflow_error_handling.py"),
        "TestInputValidation:test_empty_version_string",
    ),
}
