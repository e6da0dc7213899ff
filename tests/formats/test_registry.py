"""Registry of formats, with a toy format."""

import json
import sys
import types

import pytest

import fastshard
from fastshard._util.paths.urls import join_url
from fastshard.cli import main
from fastshard.dataset.tarset import TarSet
from fastshard.dataset.verify import Fault
from fastshard.formats import registry
from fastshard.formats.registry import Format
from support.inside.datasets import keep_registered, shards_of
from support.servers.http import Server
from support.tars import write_tar

MARK = "index.json"  # a common name, so that its contents decide


class ToyFormat(Format):
    """Toy format: tars listed in a JSON file, by part."""

    name = "toy"
    options = frozenset({"part", "key"})
    is_remote = True

    def marks(self, folder):
        data = folder.read(MARK, 1000)
        return data is not None and b'"toy"' in data

    def open_set(self, root, *, part="all", key="first", remote=None, **options):
        names = ["a.tar"] if part == "a" else ["a.tar", "b.tar"]
        paths = [join_url(root, name) for name in names]
        plain = {"index": "none", "lower": True}
        return TarSet(paths, root=root, key=key, remote=remote, **plain, **options)

    def list_lines(self, root, *, long, as_json, remote=None):
        yield f"listed {long}{' from a URL' if remote else ''}"

    def stat(self, root, *, deep, remote=None):
        return {"samples": 2 + (remote is not None)}

    def stat_lines(self, figures):
        yield f"{figures['samples']} samples"

    def verify(self, root, *, hashes=False, remote=None):
        assert (remote is not None) == root.startswith("http")
        reason = "a fault of a toy" + " with a checksum" * hashes
        return [Fault("toys", 7, None, reason)]

    def add_commands(self, commands):
        parser = commands.add_parser("play")
        parser.set_defaults(run=lambda args: 3)


@pytest.fixture
def toy(monkeypatch):
    module = types.ModuleType("toy_format")
    module.FORMAT = ToyFormat()
    monkeypatch.setitem(sys.modules, "toy_format", module)
    keep_registered(monkeypatch)
    registry.register("toy_format")
    registry.register("toy_format")  # has no effect
    assert [each.name for each in registry.formats()] == [
        "columnar",
        "streaming",
        "packed",
        "blobs",
        "toy",
    ]


@pytest.fixture
def folder(tmp_path):
    write_tar(tmp_path / "a.tar", {"1.x.txt": b"one"})
    write_tar(tmp_path / "b.tar", {"2.x.txt": b"two"})
    (tmp_path / MARK).write_text(json.dumps({"toy": 1}))
    return tmp_path


def keys_of(ds):
    with ds:
        return [sample.key for sample in ds]


@pytest.mark.usefixtures("toy")
def test_a_directory_is_opened_by_its_mark_and_its_options(folder):
    assert keys_of(fastshard.open(folder)) == ["1", "2"]
    assert keys_of(fastshard.open(folder, part="a")) == ["1"]
    assert keys_of(fastshard.open(folder, key="last")) == ["1.x", "2.x"]


@pytest.mark.usefixtures("toy")
def test_options_that_a_format_lacks_are_refused(folder):
    with pytest.raises(ValueError, match="a toy dataset does not take index, lower"):
        fastshard.open(folder, lower=False)
    with pytest.raises(TypeError, match=r"no argument parts=.*part="):
        fastshard.open(folder, parts="a")
    (folder / MARK).write_text("{}")  # not the mark: a tar dataset
    assert keys_of(fastshard.open(folder)) == ["1", "2"]
    with pytest.raises(TypeError, match="no argument part="):
        fastshard.open(folder, part="a")


@pytest.mark.usefixtures("toy")
def test_a_url_is_recognized_by_its_mark(folder):
    files = {f"/d/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with Server(files) as server:
        assert keys_of(fastshard.open(f"{server.url}/d")) == ["1", "2"]
        assert keys_of(fastshard.open(f"{server.url}/d", part="a")) == ["1"]


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("source", ["a.tar", "{a,b}.tar", "shards.json"])
def test_urls_of_files_are_not_asked_for_marks(folder, source):
    wids = {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 1}]}
    (folder / "shards.json").write_text(json.dumps(wids))
    files = {f"/d/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with Server(files) as server:
        assert keys_of(fastshard.open(f"{server.url}/d/{source}"))[0] == "1"
        assert not any(MARK in request.path for request in server.requests)


@pytest.mark.usefixtures("toy")
def test_a_mark_is_asked_for_once(folder):
    files = {f"/d/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with Server(files) as server, fastshard.open(f"{server.url}/d") as ds:
        asked = [request.path for request in server.requests]
        assert asked == [f"/d/{MARK}"]
        assert len(ds) == 2


@pytest.mark.usefixtures("toy")
def test_commands(folder, capsys):
    assert main(["ls", "-l", str(folder)]) == 0
    assert main(["stat", str(folder)]) == 0
    assert main(["stat", "--json", str(folder)]) == 0
    assert main(["verify", str(folder)]) == 1
    assert main(["play"]) == 3
    assert main(["ls", str(folder), str(folder)]) == 2
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "listed True",
        "2 samples",
        '{"samples": 2}',
        "toys: byte 7: a fault of a toy",
    ]
    assert "give it as the only source" in printed.err


@pytest.mark.usefixtures("toy")
def test_commands_on_urls(folder, capsys):
    files = {f"/d/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with Server(files) as server:
        url = f"{server.url}/d"
        assert main(["ls", url]) == 0
        assert main(["stat", url]) == 0
        assert main(["verify", "--hash", url]) == 1
        assert main(["cat", url, "1", "x.txt"]) == 0
        assert main(["ls", url, url]) == 2
        assert main(["ls", f"{url}/a.tar"]) == 0  # a shard: no mark is looked for
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "listed False from a URL",
        "3 samples",
        "toys: byte 7: a fault of a toy with a checksum",
        "two1.x.txt",
    ]
    assert "give it as the only source" in printed.err


@pytest.mark.usefixtures("toy")
def test_cat_takes_a_position_and_fields(folder, capsys):
    assert main(["cat", str(folder), "-2", "x.txt", "x.txt"]) == 0
    assert capsys.readouterr().out == "oneone"
    for wrong, status, message in [
        (["2", "x.txt"], 1, "position 2 is out of range"),
        (["0", "x.txt", "y"], 1, "'y'"),
        (["0"], 2, "names of fields"),
        (["1.x.txt"], 2, "has samples, not members"),
        (["x", "x.txt"], 2, "give a position"),
    ]:
        assert main(["cat", str(folder), *wrong]) == status
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err


def test_a_format_that_is_not_registered_marks_nothing(folder):
    with fastshard.open(folder) as ds:
        assert type(shards_of(ds)) is TarSet
