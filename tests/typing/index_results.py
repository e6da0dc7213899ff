"""Types of indexes, stores and records; read by type checkers, never run."""

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from fastshard import typed
from fastshard.typed import AtmosphereIndexEntry, Dataset, DatasetEntry, Index, packable


@packable
class Image:
    pixels: NDArray[np.uint8]
    label: str


class Store(typed.AbstractDataStore):
    """A store of shards of one's own."""

    def write_shards(self, ds: Any, *, prefix: str, **options: Any) -> list[str]:
        return [f"{prefix}/a.tar"]

    def read_url(self, url: str) -> str:
        return url

    def supports_streaming(self) -> bool:
        return False


images = [Image(np.zeros(3, "u1"), "a cat")]
index = Index(path="index.db", data_store=typed.LocalDiskStore("store"))
Index("redis", host="localhost", port=6379, atmosphere=None)
Index(
    "postgres", dsn="postgresql://localhost/x", repos={"a": typed.create_repository()}
)
Index(data_store=Store())

# Entries.
entry = index.write_samples(images, name="images", maxcount=10, data_store=Store())
found = index.get_dataset("images")
assert_type(found.open(Image), Dataset[Image])
assert_type(found.open(), Dataset[Any])
assert_type(found.name, str)
assert_type(found.data_urls, list[str])
assert_type(found.metadata, dict[str, Any] | None)
if isinstance(found, AtmosphereIndexEntry):
    assert_type(found.uri, str)
else:
    assert_type(found, DatasetEntry)
    assert_type(found.cid, str)
assert_type(index.get_entry("bafy"), DatasetEntry)
assert_type(index.entries, Iterator[DatasetEntry])
assert_type(index.list_labels(), list[tuple[str, str, str | None]])
assert_type([result.name for result in index.search("x").items], list[str])
assert_type(typed.verify_checksums(entry), dict[str, str])
assert_type(
    typed.load_dataset("@local/images", Image, split="train", index=index),
    Dataset[Image],
)

# Schemas and lenses.
assert_type(index.publish_schema(Image), str)
assert_type(index.get_schema("ref"), dict[str, Any])
Made = index.get_schema_type("ref")
made = Made(pixels=np.zeros(3), label="a")
assert_type(index.find_lenses("Image"), list[dict[str, Any]])

# The network.
client = typed.Atmosphere.login("alice.test", "app password")
assert_type(client.handle, str)
uri = client.create_record("science.alt.dataset.label", {"name": "x"})
assert_type(uri, typed.AtUri)
records, cursor = client.list_records("science.alt.dataset.label", limit=10)
assert_type(cursor, str | None)
assert_type(client.get_blob(client.did, "bafk"), bytes)
assert_type(typed.generate_cid({"a": 1}), str)
assert_type(typed.verify_cid("bafy", {}), bool)
