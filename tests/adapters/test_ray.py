"""Ray Data adapter, on one node and on two."""

import pytest

from support.marks import not_sanitized, slow
from support.processes import run_script
from support.tars import write_numbers

pytest.importorskip("ray")
pytestmark = not_sanitized

START = """
import os, sys
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
os.environ["RAY_ADDRESS"] = "local"  # not the cluster of another test
import numpy as np, pyarrow as pa, ray
import fastshard, fastshard.adapters.ray as far
folder = sys.argv[1]
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
def refused(error, call):
    try:
        call()
    except error as found:
        return str(found)
    raise AssertionError("not refused")
"""

READING = """
rows = far.read(folder, fields=["npy", "txt"], ray_options={"override_num_blocks": 5})
assert rows.count() == 103
assert rows.schema().names == ["__key__", "npy", "txt"]
assert rows.schema().types == [pa.string(), pa.large_binary(), pa.large_binary()]
with fastshard.open(folder) as ds:
    want = [(s.key, bytes(s["npy"]), bytes(s["txt"])) for s in ds]
found = [(r["__key__"], r["npy"], r["txt"]) for r in rows.take_all()]
assert sorted(found) == want
assert rows.materialize().num_blocks() == 5
assert sorted(r["__key__"] for r in rows.select_columns(["__key__"]).take_all()) == [
    key for key, _, _ in want
]
none = rows.select_columns([])
assert (none.count(), none.materialize().count(), len(none.take_all())) == (103,) * 3
assert len(rows.limit(7).take_all()) == 7
assert len(rows.input_files()) == 11
decoded = rows.map_batches(far.decode, batch_size=20).take_all()
assert sorted(int(r["txt"]) for r in decoded) == list(range(103))
for row in decoded:
    assert row["npy"].shape == (2, 3) and (row["npy"] == int(row["txt"])).all()
with fastshard.open(folder) as ds:
    part = ds.shuffle(7).split_by_rank(1, 2).select_fields("cls")
    rows = far.read(part)
    assert rows.count() == 52  # of 103: one is repeated
    keys = [r["__key__"] for r in rows.take_all()]
    assert sorted(keys) == sorted(part.keys())
    refused(fastshard.FastshardError, lambda: far.read(ds.decode()))
    refused(ValueError, lambda: far.read(ds, mode="pread"))
bad = far.read(folder, fields="jpg")
assert "jpg" in refused(Exception, bad.take_all)
print("read")
"""

TASKS = """
ds = fastshard.open(folder)
source = far.ShardDatasource(ds, ["npy", "txt"])
size = source.estimate_inmemory_data_size()
sizes = [len(s["npy"]) + len(s["txt"]) for s in ds]
assert abs(size - sum(sizes) - 10 * 103) < 200, size
tasks = source.get_read_tasks(4)
counts = [task.metadata.num_rows for task in tasks]
assert sum(counts) == 103 and len(tasks) == 4, counts
assert all(task.metadata.input_files for task in tasks)
assert counts[0] % 10 == 0  # split at the end of a shard
for task in tasks:
    blocks = list(task())
    assert len(blocks) == 1 and blocks[0].num_rows == task.metadata.num_rows
    assert blocks[0].schema == task.schema == source.schema
class Small:
    target_max_block_size = 500
(task,) = source.get_read_tasks(1, data_context=Small)
blocks = list(task())
assert len(blocks) > 10 and sum(block.num_rows for block in blocks) == 103
limited = source.get_read_tasks(4, per_task_row_limit=3)
assert [sum(b.num_rows for b in task()) for task in limited] == [3] * 4
assert [t.metadata.num_rows for t in limited] == [3] * 4
source._projection_map = {}
blocks = [block for task in source.get_read_tasks(4) for block in task()]
assert sum(block.num_rows for block in blocks) == 103
source._projection_map = {"txt": "txt"}
assert [t.schema.names for t in source.get_read_tasks(1)] == [["txt"]]
assert far.ShardDatasource(ds, ["txt", "txt", "__key__"]).columns == ("__key__", "txt")
assert far.decode({"cls": [b"3", b"4"]})["cls"].tolist() == [3, 4]
empty = far.ShardDatasource(ds[:0], None)
assert empty.estimate_inmemory_data_size() == 0
assert [t.metadata.num_rows for t in empty.get_read_tasks(3)] in ([], [0])
for count, parallelism in ((1, 5), (10, 3), (1000, 7), (103, 200)):
    for starts in (None, [0, count // 3, count // 2, count]):
        found = far.split_ranges(count, parallelism, starts)
        assert [i for a, b in found for i in range(a, b)] == list(range(count))
        assert len(found) <= parallelism
cuts = [0, 26, 52, 74, 100]
assert far.split_ranges(100, 4, cuts) == list(zip(cuts, cuts[1:]))
print("tasks")
"""

CLUSTER = """
import os, sys
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
import ray
from ray.cluster_utils import Cluster
import fastshard, fastshard.adapters.ray as far
folder = sys.argv[1]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
cluster.connect()
ray.data.DataContext.get_current().enable_progress_bars = False
assert len([node for node in ray.nodes() if node["Alive"]]) == 2
rows = far.read(folder, fields=["txt"], ray_options={"override_num_blocks": 8})

def where(batch):
    batch["node"] = [ray.get_runtime_context().get_node_id()] * len(batch["txt"])
    return batch

found = rows.map_batches(where, batch_size=None).take_all()
assert sorted(int(r["txt"]) for r in found) == list(range(103))

@ray.remote(num_cpus=1)
def index(part, parts):
    return fastshard.build_index(folder, part=f"{part}/{parts}")

made = sum(ray.get([index.remote(part, 2) for part in range(2)]), [])
fastshard.merge_indexes(folder)
assert len([path for path in made if path.endswith(".fsi")]) >= 11
assert len(fastshard.open(folder)) == 103
assert os.path.exists(os.path.join(folder, "dataset.fsi"))
ray.shutdown()
cluster.shutdown()
print("cluster")
"""


@pytest.fixture
def folder(tmp_path):
    return write_numbers(tmp_path / "n", 103)


def test_rows_are_the_samples(folder, tmp_path):
    assert "read" in run_script(tmp_path, START + READING, folder)


@slow
def test_tasks_are_ranges(folder, tmp_path):
    assert "tasks" in run_script(tmp_path, START + TASKS, folder)


@slow
def test_two_nodes_read_and_index(folder, tmp_path):
    assert "cluster" in run_script(tmp_path, CLUSTER, folder)
