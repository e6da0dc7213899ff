"""Files of a shard in its directory: every combination of raw and compressed ones."""

import itertools
import os
from types import SimpleNamespace

import pytest

from fastshard.errors import FormatError
from fastshard.streaming import JSONReader, MDSReader
from fastshard.streaming.index import FileInfo
from fastshard.streaming.read import local_files

RAW = [("shard.meta", 10), ("shard", 1000)]
ZIP = [("shard.meta.gz", 7), ("shard.gz", 300)]
NONE, SOME, ALL = "none", "some", "all"

# (raw files, compressed files, keep compressed ones): (result, files that stay).
# "raw" and "zip" stand for the sizes of the whole kinds.
STATES = {
    (NONE, NONE, True): ("", ""),
    (NONE, NONE, False): ("", ""),
    (NONE, ALL, True): ("zip", "zip"),
    (NONE, ALL, False): ("zip", "zip"),
    (ALL, NONE, True): ("raw", "raw"),  # upstream removes the raw files
    (ALL, NONE, False): ("raw", "raw"),
    (ALL, ALL, True): ("raw zip", "raw zip"),
    (ALL, ALL, False): ("raw", "raw"),  # upstream removes the raw files
    # Kinds of which a file is missing; upstream removes all of these.
    (SOME, NONE, True): ("", "raw"),
    (SOME, NONE, False): ("", "raw"),
    (NONE, SOME, True): ("", "zip"),
    (NONE, SOME, False): ("", "zip"),
    (SOME, SOME, True): ("", "raw zip"),
    (SOME, SOME, False): ("", "raw zip"),
    (SOME, ALL, True): ("zip", "zip"),
    (SOME, ALL, False): ("zip", "zip"),
    (ALL, SOME, True): ("raw", "raw"),
    (ALL, SOME, False): ("raw", "raw"),
}


class Shard:
    """The files of a joint or a split shard, some of which are there."""

    def __init__(self, folder, raw_count, raw, packed, compression="gz", split=""):
        self.reader = SimpleNamespace(
            dirname=str(folder),
            split=split,
            compression=compression,
            file_pairs=[
                (FileInfo(*raw_file, {}), FileInfo(*zip_file, {}))
                for raw_file, zip_file in zip(RAW, ZIP, strict=True)
            ][-raw_count:],
        )
        self.folder = folder / split
        self.folder.mkdir(parents=True, exist_ok=True)
        self.raw = [name for name, _ in RAW[-raw_count:] if name in raw]
        self.zip = [name for name, _ in ZIP[-raw_count:] if name in packed]
        for name in self.here:
            (self.folder / name).write_bytes(b"x")  # sizes are those of the index

    @property
    def here(self):
        return {*self.raw, *self.zip}

    @property
    def names(self):
        return set(os.listdir(self.folder))

    @property
    def listing(self):
        root = os.path.join(self.reader.dirname, self.reader.split)
        return {os.path.join(root, name) for name in self.names}

    def state(self, kind):
        found = getattr(self, kind)
        if not found:
            return NONE
        return ALL if len(found) == len(self.reader.file_pairs) else SOME


def subsets(names):
    return [
        set(chosen)
        for count in range(len(names) + 1)
        for chosen in itertools.combinations(names, count)
    ]


COMBINATIONS = [
    (count, raw, packed)
    for count in (1, 2)
    for raw in subsets([name for name, _ in RAW[-count:]])
    for packed in subsets([name for name, _ in ZIP[-count:]])
]


def test_all_combinations_are_tested():
    assert len(COMBINATIONS) == 4 + 16


@pytest.mark.parametrize("split", ["", "train", "train/a"])
@pytest.mark.parametrize("keep_zip", [False, True])
@pytest.mark.parametrize(("count", "raw", "packed"), COMBINATIONS)
def test_states(tmp_path, count, raw, packed, keep_zip, split):
    shard = Shard(tmp_path, count, raw, packed, split=split)
    sizes = {
        "raw": local_files.get_raw_size(shard.reader),
        "zip": local_files.get_zip_size(shard.reader),
    }
    result, stays = STATES[shard.state("raw"), shard.state("zip"), keep_zip]
    expected = {name for kind in stays.split() for name in getattr(shard, kind)}
    total = sum(sizes[kind] for kind in result.split())

    for _ in range(2):  # the second time nothing changes
        found = local_files.set_up_local(shard.reader, shard.listing, keep_zip)
        assert found == total
        assert shard.names == expected


@pytest.mark.parametrize("keep_zip", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_states_without_compression(tmp_path, count, keep_zip):
    names = [name for name, _ in RAW[-count:]]
    for number, raw in enumerate(subsets(names)):
        shard = Shard(tmp_path / str(number), count, raw, set(), compression=None)
        found = local_files.set_up_local(shard.reader, shard.listing, keep_zip)
        whole = len(raw) == count
        assert found == whole * local_files.get_raw_size(shard.reader)
        assert shard.names == raw  # the only copy, even where a file is missing


@pytest.mark.parametrize(
    ("count", "raw", "packed"), [each for each in COMBINATIONS if each[2]]
)
def test_compressed_files_without_compression_are_an_error(
    tmp_path, count, raw, packed
):
    shard = Shard(tmp_path, count, raw, packed, compression=None)
    for keep_zip in (False, True):
        with pytest.raises(ValueError, match=r"no compression, but .*\.gz"):
            local_files.set_up_local(shard.reader, shard.listing, keep_zip)
    assert shard.names == raw | packed


def test_the_listing_decides(tmp_path):
    """Files that came after it was made are not counted, nor removed."""
    shard = Shard(tmp_path, 2, {"shard", "shard.meta"}, {"shard.gz", "shard.meta.gz"})
    assert local_files.set_up_local(shard.reader, set(), False) == 0
    assert shard.names == shard.here


def test_a_file_that_another_process_has_removed_is_not_an_error(tmp_path):
    shard = Shard(tmp_path, 2, {"shard", "shard.meta"}, {"shard.gz", "shard.meta.gz"})
    listing = shard.listing
    os.unlink(tmp_path / "shard.gz")
    assert local_files.set_up_local(shard.reader, listing, False) == 1010
    assert shard.names == {"shard", "shard.meta"}


# Eviction.


@pytest.mark.parametrize("split", ["", "train"])
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(("count", "raw", "packed"), COMBINATIONS)
def test_evict(tmp_path, count, raw, packed, force, split):
    shard = Shard(tmp_path, count, raw, packed, split=split)
    sizes = dict(RAW + ZIP)
    if force or shard.state("zip") == ALL or shard.state("raw") == NONE:
        gone = raw | packed
    else:  # compressed files of which the raw one stays
        gone = {name for name in packed if name.removesuffix(".gz") in raw}
    assert local_files.evict(shard.reader, force=force) == sum(map(sizes.get, gone))
    assert shard.names == (raw | packed) - gone
    assert local_files.evict(shard.reader, force=force) == 0


@pytest.mark.parametrize("count", [1, 2])
def test_every_file_of_the_only_copy_has_its_contents_left(tmp_path, count):
    """Whatever is removed, a shard that could be read and lacks a zip still can."""
    for number, (_, raw, packed) in enumerate(
        each for each in COMBINATIONS if each[0] == count
    ):
        shard = Shard(tmp_path / str(number), count, raw, packed)
        if shard.state("zip") == ALL:
            continue
        before = {name.removesuffix(".gz") for name in shard.names}
        local_files.evict(shard.reader)
        after = {name.removesuffix(".gz") for name in shard.names}
        if len(before) == count and raw:
            assert after == before


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_evict_without_compression(tmp_path, count, force):
    names = {name for name, _ in RAW[-count:]}
    shard = Shard(tmp_path, count, names, set(), compression=None)
    shard.reader.file_pairs = [(raw, None) for raw, _ in shard.reader.file_pairs]
    expected = local_files.get_raw_size(shard.reader)
    assert local_files.evict(shard.reader, force=force) == expected
    assert shard.names == set()
    assert local_files.evict(shard.reader, force=force) == 0


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", ".."])
@pytest.mark.parametrize("which", [0, 1])
def test_files_elsewhere_are_not_removed(tmp_path, name, which):
    (tmp_path / "x").write_text("keep me")
    shard = Shard(tmp_path / "data", 1, {"shard"}, {"shard.gz"})
    pair = list(shard.reader.file_pairs[0])
    pair[which] = FileInfo(name, 5, {})
    shard.reader.file_pairs = [tuple(pair)]
    listing = shard.listing | {os.path.join(str(tmp_path / "data"), name)}
    for call in (
        lambda: local_files.evict(shard.reader, force=True),
        lambda: local_files.set_up_local(shard.reader, listing, False),
    ):
        with pytest.raises(FormatError, match="leaves the directory"):
            call()
    assert shard.names == {"shard", "shard.gz"}
    assert (tmp_path / "x").exists()


def test_files_behind_a_link_are_not_removed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "shard").write_text("keep me")
    shard = Shard(tmp_path / "data", 1, {"shard"}, set(), compression=None)
    (tmp_path / "data" / "link").symlink_to(outside)
    shard.reader.file_pairs = [(FileInfo("link/shard", 7, {}), None)]
    with pytest.raises(FormatError, match="a link leaves the directory"):
        local_files.evict(shard.reader, force=True)
    assert (outside / "shard").exists()


def test_a_link_is_removed_but_not_its_target(tmp_path):
    (tmp_path / "blob").write_text("keep me")
    shard = Shard(tmp_path / "data", 1, set(), set(), compression=None)
    (tmp_path / "data" / "shard").symlink_to(tmp_path / "blob")
    assert local_files.evict(shard.reader) == 1000
    assert shard.names == set()
    assert (tmp_path / "blob").exists()


def test_a_directory_may_be_a_link(tmp_path):
    shard = Shard(tmp_path / "real", 1, {"shard"}, set(), compression=None)
    (tmp_path / "data").symlink_to(tmp_path / "real")
    shard.reader.dirname = str(tmp_path / "data")
    assert local_files.evict(shard.reader) == 1000
    assert shard.names == set()


# Sizes.


@pytest.mark.parametrize(
    ("count", "raw_size", "zip_size"), [(1, 1000, 300), (2, 1010, 307)]
)
def test_sizes(tmp_path, count, raw_size, zip_size):
    reader = Shard(tmp_path, count, set(), set()).reader
    assert local_files.get_raw_size(reader) == raw_size
    assert local_files.get_zip_size(reader) == zip_size
    assert local_files.get_max_size(reader) == raw_size + zip_size
    assert local_files.get_persistent_size(reader, True) == raw_size + zip_size
    assert local_files.get_persistent_size(reader, False) == raw_size


def test_sizes_without_compression(tmp_path):
    reader = Shard(tmp_path, 2, set(), set(), compression=None).reader
    assert local_files.get_persistent_size(reader, True) == 1010
    reader.file_pairs = [reader.file_pairs[0], (reader.file_pairs[1][0], None)]
    assert local_files.get_zip_size(reader) is None
    assert local_files.get_max_size(reader) == 1010


def test_a_reader_without_files(tmp_path):
    """A user's subclass of `Reader` may lack it."""
    reader = SimpleNamespace(
        dirname=str(tmp_path), split="", compression="gz", file_pairs=[]
    )
    assert local_files.set_up_local(reader, set(), True) == 0
    assert local_files.evict(reader, force=True) == 0
    assert local_files.get_max_size(reader) == 0
    assert local_files.get_zip_size(reader) == 0


# Readers.


def make_reader(shard):
    """Return a joint or a split reader of the same files."""
    plain = shard.reader
    infos = {}
    for kind, (raw, packed) in zip(
        ["meta", "data"][-len(plain.file_pairs) :], plain.file_pairs, strict=True
    ):
        infos |= {f"raw_{kind}": raw, f"zip_{kind}": packed}
    common = {
        "dirname": plain.dirname,
        "split": plain.split,
        "compression": plain.compression,
        "hashes": [],
        "samples": 1,
        "size_limit": None,
    }
    if len(plain.file_pairs) == 2:
        return JSONReader(columns={"a": "int"}, newline="\n", **common, **infos)
    return MDSReader(
        column_encodings=["int"],
        column_names=["a"],
        column_sizes=[8],
        **common,
        **infos,
    )


@pytest.mark.parametrize("keep_zip", [False, True])
@pytest.mark.parametrize(("count", "raw", "packed"), COMBINATIONS)
def test_readers_set_up_and_evict(tmp_path, count, raw, packed, keep_zip):
    shard = Shard(tmp_path / "plain", count, raw, packed)
    other = Shard(tmp_path / "reader", count, raw, packed)
    reader = make_reader(other)
    assert reader.file_pairs == shard.reader.file_pairs
    for name in ("get_raw_size", "get_zip_size", "get_max_size"):
        expected = getattr(local_files, name)(shard.reader)
        assert getattr(reader, name)() == expected
    assert reader.get_persistent_size(keep_zip) == local_files.get_persistent_size(
        shard.reader, keep_zip
    )
    assert reader.set_up_local(other.listing, keep_zip) == local_files.set_up_local(
        shard.reader, shard.listing, keep_zip
    )
    assert other.names == shard.names
    for force in (False, True):
        assert reader.evict(force=force) == local_files.evict(shard.reader, force=force)
        assert other.names == shard.names
