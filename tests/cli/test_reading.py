"""Options of reading: one set for `open`, `convert`, `build_index` and the commands."""

import inspect
import json

import pytest

import fastshard
from fastshard.cli import main
from fastshard.cli.program import make_parser
from support.servers.http import Server
from support.tars import write_tar

VERSIONS = {"v1.05.jpg": b"five", "v1.06.jpg": b"six", "v2.0.JPG": b"two"}
MIXED = {"a.JPG": b"upper", "a.jpg": b"lower"}
PACKED = {"v1.05.msgpack": b"\x81\xa1x\x01", "v1.06.msgpack": b"\x81\xa1x\x02"}


@pytest.fixture
def versions(tmp_path):
    return write_tar(tmp_path / "v.tar", VERSIONS)


@pytest.fixture
def mixed(tmp_path):
    return write_tar(tmp_path / "m.tar", MIXED)


def run(capfdbinary, *args):
    """Run a command in this process; return its status, output and errors."""
    try:
        status = main(list(map(str, args)))
    except SystemExit as end:
        status = end.code
    out, err = capfdbinary.readouterr()
    return status, out, err.decode()


def test_convert_cuts_keys_by_the_rule(versions, tmp_path):
    done = fastshard.convert(versions, tmp_path / "out", to="mds", key="last")

    assert done.samples == 3
    ds = fastshard.open(tmp_path / "out")
    assert {s.key: bytes(s["jpg"]) for s in ds} == {
        "v1.05": b"five",
        "v1.06": b"six",
        "v2.0": b"two",
    }


def test_convert_keeps_case(mixed, tmp_path):
    with pytest.raises(fastshard.FormatError, match="twice"):
        fastshard.convert(mixed, tmp_path / "out", to="mds")
    done = fastshard.convert(mixed, tmp_path / "out", to="mds", lower=False)
    assert set(done.columns) == {"__key__", "JPG", "jpg"}


@pytest.mark.parametrize("index", ["none", "rebuild", "auto", "folder"])
@pytest.mark.parametrize("mode", ["mmap", "pread", "private"])
def test_convert_takes_index_and_mode(versions, tmp_path, index, mode):
    if index == "folder":
        index = tmp_path / "indexes"
        fastshard.build_index(versions, out=index, key="last")
    options = {"index": index, "mode": mode, "key": "last", "workers": 1}
    done = fastshard.convert(versions, tmp_path / "out", to="mds", **options)
    assert done.samples == 3


def test_convert_of_a_split(streaming_data, tmp_path):
    data = streaming_data["edge/splits#train"]
    done = fastshard.convert(data.root, tmp_path / "out", to="mds", split=data.split)
    assert done.samples == len(data.samples)


def test_convert_refuses_options_of_other_formats(streaming_data, tmp_path):
    root = streaming_data["mds/none"].root
    with pytest.raises(ValueError, match="key= is an option of tar shards; a stream"):
        fastshard.convert(root, tmp_path / "out", to="tar", key="last")
    with pytest.raises(TypeError, match="decoders="):
        fastshard.convert(root, tmp_path / "out", to="tar", decoders={})


def test_the_command_convert(versions, mixed, tmp_path, capfdbinary):
    args = ["convert", versions, tmp_path / "a", "--to", "mds", "--key", "last"]
    assert run(capfdbinary, *args, "--mode", "pread")[0] == 0
    assert len(fastshard.open(tmp_path / "a")) == 3
    args = ["convert", mixed, tmp_path / "b", "--to", "mds", "--keep-case"]
    assert run(capfdbinary, *args)[0] == 0


def test_stat_counts_samples_by_the_rule(versions, mixed, capfdbinary):
    for path, options, samples, fields in [
        (versions, [], 2, {"05.jpg": 1, "06.jpg": 1, "0.jpg": 1}),
        (versions, ["--key", "last"], 3, {"jpg": 3}),
        (versions, ["--key", "last", "--keep-case"], 3, {"jpg": 2, "JPG": 1}),
        (mixed, ["--keep-case", "--mode", "pread"], 1, {"JPG": 1, "jpg": 1}),
    ]:
        status, out, _ = run(capfdbinary, "stat", "--json", path, *options)
        figures = json.loads(out)
        assert (status, figures["samples"], figures["fields"]) == (0, samples, fields)


def test_verify_looks_for_repeated_fields_by_the_rule(mixed, capfdbinary):
    assert run(capfdbinary, "verify", mixed)[0] == 1
    assert run(capfdbinary, "verify", mixed, "--keep-case")[0] == 0
    assert run(capfdbinary, "verify", mixed, "--keep-case", "--mode", "pread")[0] == 0
    assert fastshard.open(mixed, lower=False).verify() == []
    assert fastshard.open(mixed).verify() != []


def test_cat_reads_samples_by_the_rule(versions, capfdbinary):
    for options in ([], ["--mode", "pread"]):
        args = ["cat", versions, "1", "jpg", "--key", "last", *options]
        assert run(capfdbinary, *args)[:2] == (0, b"six")
    args = ["cat", versions, "2", "JPG", "--key", "last", "--keep-case"]
    assert run(capfdbinary, *args)[:2] == (0, b"two")
    args = ["cat", versions, "v2.0.JPG", "--mode", "pread"]
    assert run(capfdbinary, *args)[:2] == (0, b"two")


def test_packed_samples_are_listed_by_the_rule(tmp_path, capfdbinary):
    path = write_tar(tmp_path / "p.tar", PACKED)
    args = ["ls", "--packed", path, "--key", "last", "--mode", "pread"]
    assert run(capfdbinary, *args)[:2] == (0, b"v1.05\nv1.06\n")
    status, out, _ = run(capfdbinary, "stat", "--json", *args[1:])
    assert (status, json.loads(out)["samples"]) == (0, 2)
    assert run(capfdbinary, "verify", *args[1:])[0] == 0


def test_query_reads_samples_by_the_rule(tmp_path, capfdbinary):
    path = write_tar(tmp_path / "p.tar", PACKED)
    status, out, err = run(capfdbinary, "query", path, "x == 2", "--key", "last")
    assert (status, err) == (0, "")
    assert b"v1.06" in out


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["ls", "--key", "last"], "--key is an option of samples; ls lists members"),
        (["ls", "--keep-case"], "--keep-case is an option of samples"),
        (["cat", "v2.0.JPG", "--key", "last"], "--key is an option of samples"),
    ],
)
def test_options_of_samples_are_refused_where_members_are_read(
    versions, capfdbinary, command, reason
):
    name, *rest = command
    status, out, err = run(capfdbinary, name, versions, *rest)
    assert (status, out) == (2, b"")
    assert reason in err


@pytest.mark.parametrize("command", ["ls", "stat", "verify"])
def test_a_format_refuses_an_option_by_its_name(streaming_data, capfdbinary, command):
    root = streaming_data["mds/none"].root
    status, _, err = run(capfdbinary, command, root, "--key", "last")
    assert status == 2
    assert "--key is not an option of streaming datasets" in err
    assert run(capfdbinary, command, root, "--mode", "pread")[0] == 0


@pytest.mark.parametrize("command", ["ls", "stat", "verify", "index"])
@pytest.mark.parametrize("option", ["token", "cache", "offline", "limit"])
def test_commands_refuse_options_of_urls_for_local_files(
    versions, tmp_path, capfdbinary, command, option
):
    (tmp_path / "token").write_text("secret")
    given = {
        "token": ["--token-file", tmp_path / "token"],
        "cache": ["--cache-dir", tmp_path / "c"],
        "offline": ["--offline", "--cache-dir", tmp_path / "c"],
        "limit": ["--cache-limit", "1GB"],
    }[option]
    status, out, err = run(capfdbinary, command, versions, *given)
    assert (status, out) == (2, b"")
    assert "local files" in err
    assert not (tmp_path / "c").exists()


def test_mode_is_refused_for_urls(versions, capfdbinary):
    with Server({"/v.tar": versions.read_bytes()}) as server:
        url = server.at("/v.tar")
        status, _, err = run(capfdbinary, "stat", url, "--mode", "pread")
        assert (status, "--mode is an option for local files" in err) == (2, True)
        status, _, _ = run(capfdbinary, "stat", url, versions, "--mode", "pread")
        assert status == 0


@pytest.mark.parametrize("name", ["lower", "mode", "decoders", "index"])
def test_an_index_does_not_depend_on_some_options(versions, name):
    for function in (fastshard.build_index, fastshard.merge_indexes):
        with pytest.raises(TypeError, match=f"no argument {name}=: an index holds"):
            function(versions, **{name: False})


def test_convert_has_the_options_of_open():
    taken = inspect.signature(fastshard.open).parameters
    given = inspect.signature(fastshard.convert).parameters
    for name in ("index", "key", "lower", "mode", "packed", "remote"):
        assert given[name] == taken[name]


@pytest.mark.parametrize("command", ["ls", "cat", "stat", "verify", "convert", "query"])
def test_each_command_has_the_options(command):
    parsers = {p.prog: p for p in make_parser().walk()}
    for flag in ("--key", "--keep-case", "--mode"):
        assert parsers[f"fastshard {command}"].has_option(flag)
