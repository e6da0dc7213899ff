"""Stores of an index that threads and processes share."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fastshard.catalog.entry import DatasetEntry
from support.processes import run_script

ROWS = 12  # of each writer
WRITERS = 8
# Forks without threads; each writer stores entries and labels, and publishes schemas.
WRITE = """
import json, os, sys
from fastshard.catalog.entry import DatasetEntry
from fastshard.catalog.providers.create import create_provider

kind, options, writers, rows = json.loads(sys.argv[1])
provider = create_provider(kind, **options)
list(provider.iter_entries())  # the parent has a connection

def choose(known):
    for version, text in known.items():
        if text == "same fields":
            return version, None
    return f"1.0.{len(known)}", "same fields"

def write(number):
    for i in range(rows):
        entry = DatasetEntry(f"d{number}-{i}", "ref", [f"{number}-{i}.tar"])
        provider.store_entry(entry)
        provider.store_label(entry.name, entry.cid, f"1.0.{i}")
        provider.store_label("shared", entry.cid, f"{number}.0.{i}")
        assert provider.get_entry_by_name(entry.name) == entry
        assert provider.store_schema_version("Vec", choose) == "1.0.0"
        provider.store_lens_version("own", lambda known: (f"1.{len(known)}.0", ""))

children = []
for number in range(writers):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            write(number)
            code = 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    children.append(child)
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [
    0
] * writers
assert len(list(provider.iter_entries())) == writers * rows  # the parent's own
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_processes_that_write_at_once_lose_nothing(kind, options, connect, tmp_path):
    given = json.dumps([kind, options, WRITERS, ROWS], default=str)
    run_script(tmp_path, WRITE, given)

    provider = connect()
    names = {f"d{number}-{i}" for number in range(WRITERS) for i in range(ROWS)}
    assert {entry.name for entry in provider.iter_entries()} == names
    labels = list(provider.iter_labels())
    assert {name for name, _, _ in labels} == names | {"shared"}
    assert len(labels) == 2 * WRITERS * ROWS
    assert len(list(provider.iter_label_rows("shared"))) == WRITERS * ROWS
    assert provider.get_label("shared")[1] == f"{WRITERS - 1}.0.{ROWS - 1}"
    assert list(provider.iter_schemas()) == [("Vec", "1.0.0", "same fields")]
    versions = {version for _, version, _ in provider.iter_lenses()}
    assert versions == {f"1.{i}.0" for i in range(WRITERS * ROWS)}


def test_threads_share_a_provider(provider):
    barrier = threading.Barrier(WRITERS)

    def write(number):
        barrier.wait()
        for i in range(ROWS):
            entry = DatasetEntry(f"d{number}-{i}", "ref", [f"{number}-{i}.tar"])
            provider.store_entry(entry)
            provider.store_label(entry.name, entry.cid)
            assert provider.get_entry_by_cid(provider.get_label(entry.name)[0]) == entry
        return len(list(provider.iter_entries()))

    with ThreadPoolExecutor(WRITERS) as threads:
        seen = list(threads.map(write, range(WRITERS)))
    assert max(seen) == WRITERS * ROWS
    assert len(list(provider.iter_labels())) == WRITERS * ROWS


# Another thread writes at the moment of each fork.
FORK = """
import json, os, sys, threading, warnings
from fastshard.catalog.entry import DatasetEntry
from fastshard.catalog.providers.create import create_provider

warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
kind, options = json.loads(sys.argv[1])
provider = create_provider(kind, **options)
stopped = threading.Event()
written = [DatasetEntry("thread", "ref", ["first.tar"])]
provider.store_entry(written[0])  # imports libraries: no fork may happen meanwhile

def write():
    while not stopped.wait(0.001):  # the children get the lock in between
        entry = DatasetEntry("thread", "ref", [f"{len(written)}.tar"])
        provider.store_entry(entry)
        written.append(entry)

thread = threading.Thread(target=write, daemon=True)
thread.start()
for number in range(10):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            entry = DatasetEntry(f"child {number}", "ref", [f"child {number}.tar"])
            provider.store_entry(entry)
            assert provider.get_entry_by_name(entry.name) == entry
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert provider.get_entry_by_name(f"child {number}").cid
stopped.set()
thread.join()
found = {entry.cid for entry in provider.iter_entries()}
assert found >= {entry.cid for entry in written}
assert len(found) == len(written) + 10
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_while_a_thread_writes(kind, options, connect, tmp_path):
    given = json.dumps([kind, options], default=str)
    run_script(tmp_path, FORK, given, timeout=60)
    assert len({entry.name for entry in connect().iter_entries()}) == 11
