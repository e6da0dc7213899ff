"""Command line on datasets: index, stat, verify, ls and cat."""

import json
import os
import subprocess
import sys

import pytest

import fastshard
from fastshard.cli import main
from support.tars import write_tar

SHARDS = 4


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for shard in range(SHARDS):
        members = {f"{shard}-{i}.txt": b"x" * 10**i for i in range(4)}
        members |= {f"{shard}-{i}.cls": b"1" for i in range(4)}
        write_tar(folder / f"t-{shard}.tar", members)
    return folder


def run(capsys, *arguments):
    """Return the exit status, the lines of stdout, and stderr."""
    status = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out.splitlines(), err


def indexes(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*.fsi")}


def test_index_prints_the_paths_of_indexes(folder, capsys):
    status, lines, err = run(capsys, "index", folder)
    assert status == 0
    assert err == ""
    assert lines == [
        *(str(folder / f"t-{i}.fsi") for i in range(SHARDS)),
        str(folder / "dataset.fsi"),
    ]
    assert all(os.path.exists(line) for line in lines)


@pytest.mark.parametrize("form", ["json", "idx", "tar.idx"])
def test_index_makes_other_formats(folder, capsys, form):
    status, lines, _ = run(capsys, "index", folder, "--format", form)
    assert status == 0
    for line in lines:
        tar = line.removesuffix(f".{form}") + ".tar"
        assert fastshard.open_shard(tar, index=line).index == line


def test_index_makes_a_shard_list(folder, capsys):
    status, [line], _ = run(capsys, "index", folder, "--format", "wids")
    assert status == 0
    assert len(fastshard.open(line)) == SHARDS * 4
    status, lines, _ = run(capsys, "ls", line)
    assert (status, len(lines)) == (0, SHARDS * 8)


def test_parts_and_merge_equal_one_run(folder, tmp_path, capsys):
    one, parts = tmp_path / "one", tmp_path / "parts"
    assert run(capsys, "index", folder, "--out", one)[0] == 0
    for i in range(3):
        command = ("index", folder, "--out", parts, "--part", f"{i}/3", "--threads", 1)
        assert run(capsys, *command)[0] == 0
    assert run(capsys, "index", folder, "--out", parts, "--merge")[0] == 0
    assert indexes(parts) == indexes(one)
    assert indexes(folder) == {}


def test_merging_too_early_names_the_missing_index(folder, capsys):
    run(capsys, "index", folder, "--part", "0/2")
    status, _, err = run(capsys, "index", folder, "--merge")
    assert status == 1
    assert "t-1.tar has no index" in err


@pytest.mark.parametrize(
    "wrong",
    [["--part", "2/2"], ["--part", "x"], ["--merge", "--part", "0/2"],
     ["--merge", "--format", "json"]],
)  # fmt: skip
def test_wrong_usage_is_status_2(folder, capsys, wrong):
    assert run(capsys, "index", folder, *wrong)[0] == 2
    assert indexes(folder) == {}


def test_a_broken_shard_is_a_message(folder, capsys):
    (folder / "t-2.tar").write_bytes(b"x" * 1024)
    for command in ("index", "ls", "stat", "verify"):
        status, lines, err = run(capsys, command, folder)
        assert status == 1
        assert "t-2.tar" in err + "".join(lines)
        assert "Traceback" not in err


def test_no_permission_suggests_another_directory(folder, capsys, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied", "t-0.fsi")

    monkeypatch.setattr("fastshard.index.binary.replace_file", refuse)
    status, _, err = run(capsys, "index", folder)
    assert status == 1
    assert "--out" in err


def test_stat_adds_up(folder, capsys):
    run(capsys, "index", folder)
    status, [line], _ = run(capsys, "stat", folder, "--json")
    figures = json.loads(line)
    assert status == 0
    assert figures["shards"] == figures["indexed"] == SHARDS
    assert figures["samples"] == SHARDS * 4
    assert figures["members"] == SHARDS * 8
    assert figures["member_bytes"] == SHARDS * (1111 + 4)
    assert figures["fields"] == {"txt": SHARDS * 4, "cls": SHARDS * 4}
    sizes = dict(map(tuple, figures["sizes"]))
    assert sizes == {1: SHARDS * 5, 8: SHARDS, 64: SHARDS, 512: SHARDS}
    status, lines, _ = run(capsys, "stat", folder)
    assert lines[0] == "all together"
    assert sum("####" in line for line in lines) >= 1
    status, lines, _ = run(capsys, "stat", "--each", "--json", folder)
    assert [json.loads(line).get("shard") for line in lines] == [
        *(str(folder / f"t-{i}.tar") for i in range(SHARDS)), None
    ]  # fmt: skip


def test_an_empty_member_has_its_own_row(tmp_path, capsys):
    write_tar(tmp_path / "a.tar", {"a": b"", "b": b"1"})
    write_tar(tmp_path / "b.tar", {"a": b""})
    _, [line], _ = run(capsys, "stat", "--json", tmp_path)
    assert json.loads(line)["sizes"] == [[0, 2], [1, 1]]


def test_verify_lists_stale_indexes(folder, capsys):
    run(capsys, "index", folder)
    status, lines, err = run(capsys, "verify", folder)
    assert (status, err) == (0, "")
    assert [line.rpartition(": ")[2] for line in lines] == [
        *["ok, 8 members"] * SHARDS, "ok"
    ]  # fmt: skip
    write_tar(folder / "t-1.tar", {"new.txt": b"1"})
    status, lines, err = run(capsys, "verify", "--json", folder)
    assert status == 1
    faults = [json.loads(line) for line in lines]
    assert {os.path.basename(fault["path"]) for fault in faults} == {
        "t-1.fsi",
        "dataset.fsi",
    }


def test_verify_compares_hashes(folder, capsys):
    run(capsys, "index", folder, "--hash")
    assert run(capsys, "verify", "--hash", folder)[0] == 0
    path = folder / "t-3.tar"
    status = path.stat()
    raw = bytearray(path.read_bytes())
    raw[512] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run(capsys, "verify", folder)[0] == 0
    code, lines, _ = run(capsys, "verify", "--hash", "--json", folder)
    assert code == 1
    assert json.loads(lines[0])["offset"] == 512


def test_a_stale_index_is_one_line_of_warning(folder, capsys):
    run(capsys, "index", folder)
    write_tar(folder / "t-1.tar", {"new.txt": b"1"})
    status, lines, err = run(capsys, "ls", folder / "t-1.tar")
    assert (status, lines) == (0, ["new.txt"])
    assert err.startswith("fastshard: warning: stale index: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("source", ["{}", "{}/*.tar", "{}/t-{{0..3}}.tar", "{}/**"])
def test_every_kind_of_source_is_listed(folder, capsys, source):
    status, lines, _ = run(capsys, "ls", source.format(folder))
    assert status == 0
    assert len(lines) == SHARDS * 8


def test_cat_finds_a_member_in_its_shard(folder, capsys):
    write_tar(folder / "u.tar", {"0-0.txt": b"again"})
    command = [sys.executable, "-m", "fastshard", "cat", folder]
    done = subprocess.run([*command, "2-1.txt", "0-1.cls"], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"x" * 10 + b"1")
    done = subprocess.run([*command, "0-0.txt"], capture_output=True)
    assert done.returncode == 1
    assert b"2 shards" in done.stderr
    done = subprocess.run([*command, "none.txt"], capture_output=True)
    assert done.returncode == 1
    assert b"no member 'none.txt'" in done.stderr


def test_cat_takes_a_position_of_shards_too(folder, capsys):
    assert main(["cat", str(folder), "6", "txt", "cls"]) == 0
    assert main(["cat", f"{folder}/t-0.tar", "-3", "txt"]) == 0
    assert capsys.readouterr().out == "x" * 100 + "1" + "x" * 10
    write_tar(folder / "u.tar", {"7": b"seven", "txt": b"name"})
    assert main(["cat", str(folder), "7", "txt"]) == 0  # names of members win
    assert capsys.readouterr().out == "sevenname"
    assert main(["cat", str(folder), "16", "cls"]) == 1
    assert "16 is out of range" in capsys.readouterr().err
    assert main(["cat", str(folder), "0", "png"]) == 1
    assert "png" in capsys.readouterr().err
