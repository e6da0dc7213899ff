"""Readers and writers of columnar datasets."""

from fastshard.columnar.write import append_file
from fastshard.columnar.write.pending_rows import PendingRows
from fastshard.columnar.write.transaction import Transaction

ADD_COLUMN = Transaction._add_column
PENDING_WRITES = PendingRows.write, PendingRows._write_singly


def snapshot_of(reader):
    """Return the state of a dataset that a reader has open."""
    return reader._snapshot


def open_sources(reader):
    """Return the sources of the shards that a reader has open."""
    return snapshot_of(reader).files.sources()


def lookup_of(reader):
    """Return the look-up of ids of a reader."""
    return reader._lookup


def items_of(reader):
    """Return the items of a reader that is indexed by positions."""
    return reader._items


def samples_of(reader):
    """Return the compiled samples of a reader."""
    return reader.samples._samples


def ring_of_reader(reader):
    """Return the ring of pages that bounds the memory of a reader."""
    return reader._ring


def forget_asked(reader):
    """Forget how many samples a reader was asked for."""
    reader._asked = 0


def keep_unread_generations(monkeypatch):
    """Take each older generation for one that a reader may have open."""
    monkeypatch.setattr(
        "fastshard.columnar.read.leases._all_read_latest", lambda conn: False
    )


def before_opening_a_shard(files, hook):
    """Call a hook before a shard is opened."""
    open_shard = files._open_shard

    def open_later(*args, **options):
        hook()
        return open_shard(*args, **options)

    files._open_shard = open_later


def before_opening_the_index(snapshot, hook):
    """Call a hook before the index is opened."""
    open_index = snapshot._open_index

    def open_later(*args, **options):
        hook()
        return open_index(*args, **options)

    snapshot._open_index = open_later


def holds_lease(snapshot):
    """Return whether a snapshot keeps its generation from being removed."""
    return snapshot._lease._fd != -1


def transaction_of(writer):
    """Return the transaction of a writer."""
    return writer._transaction


def count_pending(writer):
    """Return how many rows of a writer are not sent to SQLite."""
    pending = writer._session.pending
    return len(pending._values) // (len(pending._insert.columns) or 1)


def unsynced_files(writer):
    """Return the files of a writer that are not synced."""
    return transaction_of(writer).sync_queue._unsynced


def sync_in_this_thread(monkeypatch):
    """Sync files at a flush, not before it in threads."""
    monkeypatch.setattr(append_file.SyncQueue, "_start", lambda self: None)
