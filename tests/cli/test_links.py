"""Commands on shards with links, read and unread."""

import json
from types import SimpleNamespace

import pytest

from fastshard.cli.entry import main
from support.tars import SYMBOLIC, write_links

READ = [("a.jpg", b"abc"), ("b.jpg", "a.jpg"), ("c.jpg", "b.jpg", SYMBOLIC)]
UNREAD = [("d.jpg", "gone.jpg"), ("d/e.jpg", "../gone.jpg", SYMBOLIC)]


@pytest.fixture
def read(tmp_path):
    return write_links(tmp_path / "read.tar", READ)


@pytest.fixture
def unread(tmp_path):
    return write_links(tmp_path / "unread.tar", [*READ, *UNREAD])


@pytest.fixture
def run(capsysbinary):
    """Return a function that runs a command: its status, stdout and stderr."""

    def call(*args):
        status = main([str(arg) for arg in args])
        out, err = capsysbinary.readouterr()
        return SimpleNamespace(returncode=status, stdout=out, stderr=err)

    return call


def test_links_that_are_read_are_members(run, read):
    assert run("ls", read).stdout.split() == [b"a.jpg", b"b.jpg", b"c.jpg"]
    assert run("cat", read, "c.jpg").stdout == b"abc"
    for command in ("verify", "index", "verify", "stat"):
        done = run(command, read)
        assert (done.returncode, done.stderr) == (0, b"")
    figures = json.loads(run("stat", "--json", read).stdout)
    assert (figures["members"], figures["samples"]) == (3, 3)
    assert (figures["skipped"], figures["unread_links"]) == ({}, 0)


def test_verify_lists_links_that_lead_to_no_member(run, unread):
    faults = [
        json.loads(line) for line in run("verify", "--json", unread).stdout.splitlines()
    ]
    assert [(f["offset"], f["member"], f["reason"]) for f in faults] == [
        (2048, "d.jpg", "a hard link to 'gone.jpg', which leads to no member"),
        (2560, "d/e.jpg", "a symbolic link to '../gone.jpg', which leads to no member"),
    ]
    assert run("verify", unread).returncode == 1
    many = write_links(unread, [*READ, *((f"{i}.jpg", "gone") for i in range(150))])
    found = run("verify", many).stdout.decode().splitlines()
    assert len(found) == 101
    assert found[-1].endswith("50 more links lead to no member")


def test_stat_and_ls_count_links_that_lead_to_no_member(run, read, unread):
    for command in ("stat", "ls"):
        done = run(command, read, unread)
        assert done.returncode == 0
        assert done.stderr.count(b"2 links lead to no member") == 1
    done = run("stat", read, unread)
    assert "links    2 lead to no member" in done.stdout.decode()
    figures = json.loads(run("stat", "--json", unread).stdout)
    assert figures["skipped"] == {"hard link": 1, "symbolic link": 1}
    assert figures["unread_links"] == 2
    assert run("index", unread).returncode == 0
    figures = json.loads(run("stat", "--json", unread).stdout)
    assert figures["index"] is not None
    assert figures["unread_links"] == 2


def test_index_warns_of_links_that_lead_to_no_member(run, read, unread):
    done = run("index", read.parent)
    assert done.returncode == 0
    assert done.stderr.count(b"2 links lead to no member") == 1
    assert b"'d.jpg', a hard link to 'gone.jpg'" in done.stderr


def test_index_of_a_tar_of_links_alone_fails(run, tmp_path):
    path = write_links(tmp_path / "t.tar", UNREAD)
    done = run("index", path)
    assert done.returncode == 1
    assert b"links alone" in done.stderr
    assert b"make it with tar -h" in done.stderr
    assert not list(tmp_path.glob("*.fsi"))


def test_verify_tells_of_a_lone_block_of_zeros(run, read):
    whole = read.read_bytes()
    read.write_bytes(whole[:1024] + bytes(512) + whole[1024:])
    done = run("verify", read)
    assert done.returncode == 1
    assert b"byte 1,024: a lone block of zeros before further members" in done.stdout
    assert run("ls", read).stdout.split() == [b"a.jpg", b"b.jpg", b"c.jpg"]
