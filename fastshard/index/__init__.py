"""Index files of shards and datasets, one module per format."""
