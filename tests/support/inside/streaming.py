"""Readers and writers of mosaicml-streaming's formats, and their raw files."""

import threading
from importlib import import_module

from fastshard.codecs import raw_files

write_all = raw_files._write_all
check_pieces = raw_files._check_pieces


def replace_write_all(monkeypatch, function):
    """Replace the function that writes decompressed bytes."""
    monkeypatch.setattr(raw_files, "_write_all", function)


def replace_check_pieces(monkeypatch, function):
    """Replace the generator that checks decompressed pieces."""
    monkeypatch.setattr(raw_files, "_check_pieces", function)


def hide_brotli(monkeypatch):
    """Hide the libraries of brotli."""
    monkeypatch.setattr("fastshard.codecs.compression._find_brotli", lambda: None)


def registered_encodings():
    """Return the encodings that were registered, by name."""
    return import_module("fastshard.streaming.encodings.registry")._registered


def open_ahead(dataset, k):
    """Open a compressed shard ahead, as a thread does."""
    ahead = dataset._set._compressed
    ahead._threads[k] = threading.current_thread()
    ahead._open_ahead(k)


def opened_ahead(dataset):
    """Return the compressed shards that were opened ahead."""
    return dataset._set._compressed._ready


def join_opening_ahead(dataset):
    """Wait for the threads that open compressed shards ahead."""
    for thread in list(dataset._set._compressed._threads.values()):
        thread.join(60)


def has_rows(reader):
    """Return whether a reader decodes its rows in compiled code."""
    return reader._has_rows()


def release(reader):
    """Close the files of a reader."""
    reader._release()


def begin_shard(writer):
    """Begin a shard, as mosaicml-streaming's writers do behind `flush_shard`."""
    writer._reset_cache()


def rows_of(writer):
    """Return the memory of the rows of a writer's shard."""
    return writer._rows


def uncounted_bytes(writer):
    """Return the bytes of a shard that its writer does not count."""
    return writer._uncounted_bytes
