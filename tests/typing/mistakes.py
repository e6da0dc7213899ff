# ruff: noqa: B018, E501
# fmt: off
"""Mistakes that type checkers find; never run.

A comment says which error mypy and pyright report on its line.
"""

from typing import Any

import fastshard
from fastshard import Dataset, Sample


def count_bytes(sample: Sample) -> int:
    return len(sample["jpg"])


def label(values: dict[str, Any]) -> str:
    return str(values["cls"])


ds = fastshard.open("train/")

# Datasets and samples.
number: int = ds  # E: assignment, reportAssignmentType
ds.shufle(7)  # E: attr-defined, reportAttributeAccessIssue
ds + "more"  # E: operator, reportOperatorIssue
ds[0.5]  # E: call-overload, reportArgumentType reportCallIssue
ds[0].array(1)  # E: arg-type, reportArgumentType
ds[0].bytes  # E: attr-defined, reportAttributeAccessIssue
part: Sample = ds[:3]  # E: assignment, reportAssignmentType
ds.shuffle("7")  # E: arg-type, reportArgumentType
ds.split_by_rank(0, 2, drop_last="no")  # E: arg-type, reportArgumentType
fastshard.open("train/", mode="mapped")  # E: arg-type, reportArgumentType
fastshard.open("train/", chunk_size=3)  # E: call-arg, reportCallIssue
fastshard.open("train/", shuffle=True)  # E: call-arg, reportCallIssue
fastshard.WebDataset("train/")  # E: attr-defined, reportAttributeAccessIssue
ds.batch(4)  # E: attr-defined, reportAttributeAccessIssue
ds.shuffle(buffer_size=1000)  # E: call-arg, reportCallIssue
fastshard.ShardWriter("x.tar", maxcuont=3)  # E: call-arg, reportCallIssue
fastshard.ShardWriter("x.tar", max_count=3.5)  # E: arg-type, reportArgumentType
fastshard.open_shard(7)  # E: arg-type, reportArgumentType

# Mapped datasets.
sizes: Dataset[str] = ds.map(count_bytes)  # E: arg-type, reportAssignmentType
ds.map(label)  # E: arg-type, reportArgumentType
ds.decode("cls").map(count_bytes)  # E: arg-type, reportArgumentType
ds.decode("cls").decode("cls")  # E: misc, reportAttributeAccessIssue
ds.map(count_bytes).select_fields("jpg")  # E: misc, reportAttributeAccessIssue
ds.map(count_bytes)[0].key  # E: attr-defined, reportAttributeAccessIssue

# Iteration.
ds.iter([1, 2])  # E: arg-type, reportArgumentType
ds.iter(on_error="ignore")  # E: arg-type, reportArgumentType
iter(ds).state()  # E: attr-defined, reportAttributeAccessIssue
next(ds.iter()).decode(1)  # E: arg-type, reportArgumentType
name: str = next(iter(ds.map(count_bytes)))  # E: assignment, reportAssignmentType

# Batches.
ds.batches(4, collate=label)  # E: arg-type, reportArgumentType reportCallIssue
out: dict[str, Any] = {}
ds.batches(2, collate=len, out=out)  # E: call-overload, reportCallIssue reportArgumentType
counts = ds.batches(4, collate=len)
keys: list[str] = next(counts)  # E: arg-type, reportAssignmentType
raw = [ds[0]]
fastshard.collate(raw, out=[])  # E: call-overload, reportCallIssue reportArgumentType

# Datasets of datasets.
fastshard.mix(ds)  # E: arg-type, reportArgumentType
fastshard.mix([ds, [1, 2]])  # E: arg-type, reportArgumentType
fastshard.zip_by_key(ds, fastshard.mix([ds]))  # E: arg-type, reportArgumentType
pairs = fastshard.zip_by_key(ds, ds)
pairs["key"]  # E: index, reportArgumentType reportCallIssue
