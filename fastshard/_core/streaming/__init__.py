"""Rows of MosaicML Streaming shards: offset tables, plans, indexes, samples."""
