"""Clients of servers and stores, and the cache."""

from importlib import import_module


def fast_path_of(client):
    """Return the HTTP client of ranges."""
    return client._fast


def idle_connections(client):
    """Return the idle connections of the HTTP client of ranges, to one server."""
    (server,) = fast_path_of(client)._servers.values()
    return server.idle


def forget_pools(client):
    """Drop the pools of urllib3."""
    client._pools.clear()
    client._managers.clear()


def forget_tls_contexts():
    """Drop the certificates that this process has read."""
    import_module("fastshard.remote.http.connection")._tls_context.cache_clear()


def target_of(client, url):
    """Return a URL as requests name it."""
    return client._target_of(url)


def loop_of(client):
    """Return the loop of requests without a thread each."""
    return fast_path_of(client)._loop


def is_running(loop):
    """Return whether the thread of a loop runs."""
    return loop._thread is not None


def sockets_of(loop):
    """Return the sockets of a loop."""
    return loop._sockets


def record_pauses(monkeypatch):
    """Return a list that gets the pauses of retries, which do not sleep."""
    pauses = []
    deadline = import_module("fastshard.remote.deadline").Deadline
    monkeypatch.setattr(deadline, "_sleep", lambda _, seconds: pauses.append(seconds))
    return pauses


def locate(client, url):
    """Return the store and the key of a URL."""
    return client._locate(url)


def locate_in(monkeypatch, store, key):
    """Let each URL of a store stand for one object."""
    client = import_module("fastshard.remote.object_store").StoreClient
    monkeypatch.setattr(client, "_locate", lambda self, url: (store, key))


def forget_use_of_obstore(monkeypatch):
    """Forget that this process used obstore."""
    monkeypatch.setattr("fastshard.remote.object_store._Process.used", False)


def files_of(entry):
    """Return the open files of an object in the cache, or None."""
    return entry._files


def cache_of(entry):
    """Return the cache of an object."""
    return entry._cache


def before_each_record(monkeypatch, hook):
    """Call a hook before a record is appended to the log of a cached object."""
    files = import_module("fastshard.remote.cache.entry_files").EntryFiles
    append = files._append

    def append_later(self, records):
        hook()
        append(self, records)

    monkeypatch.setattr(files, "_append", append_later)


def paths_in_process():
    """Return the hashed objects that this process writes."""
    return import_module("fastshard.remote.cache.hashed")._in_process.paths


def forget_hashed():
    """Forget the hashed objects that this process has checked."""
    hashed = import_module("fastshard.remote.cache.hashed")
    hashed._known.clear()
    hashed._found.clear()


def forget_sweeps(monkeypatch):
    """Forget the caches that this process has swept."""
    monkeypatch.setattr("fastshard.remote.cache.hashed._swept", set())


def before_each_hash(monkeypatch, hook):
    """Call a hook with the path of a file before it is hashed."""
    hashed = import_module("fastshard.remote.cache.hashed")
    hash_file = hashed._hash_file

    def hash_later(path):
        hook(path)
        return hash_file(path)

    monkeypatch.setattr(hashed, "_hash_file", hash_later)
