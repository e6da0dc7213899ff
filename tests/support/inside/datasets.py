"""Datasets of all formats, their shards, indexes, loaders and adapters."""

from importlib import import_module


def shards_of(dataset):
    """Return a dataset's set of shards."""
    return dataset._set


def opened_shards(dataset):
    """Return for each shard whether it is open."""
    return [samples is not None for samples in shards_of(dataset).open_samples]


def is_counted(dataset):
    """Return whether the samples are counted without opening shards."""
    return shards_of(dataset).is_counted()


def has_dataset_index(dataset):
    """Return whether a dataset index is in use."""
    return shards_of(dataset).index_view is not None


def ring_of(dataset):
    """Return the ring of pages that bounds the memory of a dataset."""
    return shards_of(dataset).ring


def locator_of(dataset):
    """Return the compiled table of a dataset's shards."""
    return shards_of(dataset).locator()


def files_of(dataset):
    """Return the shard files of a columnar dataset."""
    return shards_of(dataset).snapshot.files


def sources_of(dataset):
    """Return the open sources of a columnar dataset."""
    return files_of(dataset).sources()


def plan_of(dataset):
    """Return the plan of a dataset: its order and its share."""
    return dataset._plan


def order_of(dataset):
    """Return the positions in the order of a dataset."""
    return dataset._order()


def record_probes(keys):
    """Return a list that gets each position whose key is looked at."""
    probed, key_at = [], keys._key

    def record(i):
        probed.append(i)
        return key_at(i)

    keys._key = record
    return probed


def pictures_of(sample):
    """Return the pictures that an iteration decoded ahead, by field."""
    return sample._pictures


def keep_registered(monkeypatch):
    """Drop the formats that a test registers when it ends."""
    registry = import_module("fastshard.formats.registry")
    monkeypatch.setattr(registry, "_modules", dict(registry._modules))


# Shards and indexes


def contents_of(shard):
    """Return the members of a tar shard as an index has them."""
    return shard._contents


def new_shard_of(writer):
    """Return the shard that a tar writer writes."""
    return writer._builder.new


def set_max_count(writer, count):
    """Change the most samples of a shard that a tar writer writes."""
    writer._max_count = count


def forget_warning(monkeypatch):
    """Forget that this process warned of an old index."""
    monkeypatch.setattr("fastshard.index.contents._has_warned", False)


def before_each_comparison(monkeypatch, hook):
    """Call a hook before an index is compared with all headers of its shard."""
    freshness = import_module("fastshard.index.freshness")
    compare_all = freshness._compare_all

    def compare(*args):
        hook()
        return compare_all(*args)

    monkeypatch.setattr(freshness, "_compare_all", compare)


def after_each_index(monkeypatch, hook):
    """Call a hook when the index of a shard is written."""
    build_index = import_module("fastshard.dataset.build_index")
    build_one = build_index._build_one

    def build(*args):
        made = build_one(*args)
        hook()
        return made

    monkeypatch.setattr(build_index, "_build_one", build)


# Loaders


def documents_of(windows):
    """Return the documents of a dataset of tokens."""
    return windows._documents


def are_documents_read(windows):
    """Return whether the lengths of the documents are known."""
    return documents_of(windows)._found is not None


def table_of_windows(windows):
    """Return the compiled table of a dataset of tokens."""
    return documents_of(windows).windows()[0]._table


def recorder_of(batches):
    """Return the recorder of a loader's times."""
    return batches._recorder


def blocked_seconds(stats):
    """Return the seconds that threads waited for data."""
    return stats._blocked


def set_timeout(loader, seconds):
    """Change how long a loader waits for a batch."""
    loader._options = loader._options._replace(timeout=seconds)


def replace_claim(monkeypatch, function):
    """Replace the method by which a thread of a loader takes its next work."""
    pipeline = import_module("fastshard.loader.threads.pipeline")
    monkeypatch.setattr(pipeline.Pipeline, "_claim", function)


def hide_library(monkeypatch, name):
    """Hide a library that decodes pictures."""
    decoders = import_module("fastshard.loader.image_decoders")
    monkeypatch.setitem(decoders._libraries, name, None)


def forbid_scratch(monkeypatch):
    """Fail where a picture is decoded into memory beside its batch."""
    monkeypatch.setattr("fastshard.loader.images._scratch", None)


def scratch_sizes():
    """Return the sizes of the kept scratch memory, in bytes."""
    kept = import_module("fastshard.loader.images")._scratch._kept
    return [0 if array is None else array.nbytes for array in kept]


# Adapters


def copies_of(loader):
    """Return the copies to a device that have not ended."""
    return loader._copies


def iterator_of(dataset):
    """Return the iterator of an iterable dataset of torch."""
    return dataset._iterator


def descriptor_of(slot):
    """Return the file descriptor of shared memory."""
    return slot._fd


def received_slots():
    """Return the slots that this process received, by key."""
    return import_module("fastshard.adapters.slots")._received


def drop_dead_slots():
    """Drop the received slots whose processes have ended."""
    import_module("fastshard.adapters.slots")._drop_dead_slots(0)
