"""Command line on shards, partly in processes of its own."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile

import pytest

import fastshard
from fastshard._util.terminal import escape_name
from fastshard.cli import demo, main
from fastshard.errors import FastshardError
from support.tars import write_tar
from support.threads import in_threads


def run(*args, stdin=None, **options):
    """Run a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "fastshard", *map(str, args)],
        capture_output=True,
        **options,
    )


def lines(done):
    return done.stdout.decode().splitlines()


def test_ls_prints_names(shard_path, members):
    done = run("ls", shard_path)
    assert (done.returncode, lines(done), done.stderr) == (0, list(members), b"")


def test_ls_long_adds_offset_and_size(shard_path):
    with tarfile.open(shard_path) as tar:
        expected = [[str(m.offset_data), str(m.size), m.name] for m in tar]
    assert [line.split() for line in lines(run("ls", "--long", shard_path))] == expected


def test_ls_json_is_one_object_a_line(shard_path, members):
    found = [json.loads(line) for line in lines(run("ls", "--json", shard_path))]
    assert [member["name"] for member in found] == list(members)
    assert found[0] == {
        "shard": str(shard_path),
        "name": "000.jpg",
        "offset": 512,
        "size": 770,
    }


@pytest.mark.parametrize("command", ["ls", "stat", "verify"])
def test_indexes_among_shards_are_left_out(shard_path, command, tmp_path):
    index = fastshard.open_shard(shard_path).save_index()
    done = run(command, index, shard_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines(done) == lines(run(command, shard_path))
    alone = run(command, index)
    assert alone.returncode == 1
    assert b"is not a shard (.tar) but an index: open the shards" in alone.stderr


def test_ls_continues_after_a_broken_shard(shard_path, members, tmp_path):
    bad = tmp_path / "bad.tar"
    bad.write_bytes(b"\xee" * 1000)
    done = run("ls", bad, shard_path, tmp_path / "absent.tar")
    assert done.returncode == 1
    assert lines(done) == [f"{shard_path}:{name}" for name in members]
    message = done.stderr.decode()
    assert f"checksum is wrong - at {bad}, byte 0" in message
    assert "absent.tar" in message
    assert "Traceback" not in message


def test_ls_into_head_ends_quietly(tmp_path):
    path = write_tar(tmp_path / "s.tar", {f"{i:0100d}": b"" for i in range(20_000)})
    command = f'"{sys.executable}" -m fastshard ls "{path}" | head -n 1'
    done = subprocess.run(command, shell=True, capture_output=True)
    assert done.stdout == b"0" * 100 + b"\n"
    assert done.stderr == b""
    command = f"set -o pipefail; {command}"
    assert subprocess.run(["bash", "-c", command], stdout=-3).returncode == 141


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("plain/ä.txt", "plain/ä.txt"),
        ("new\nline", "new\\nline"),
        ("esc\x1b[31m", "esc\\x1b[31m"),
        ("back\\slash", "back\\\\slash"),
        ("byte\udcff", "byte\\xff"),
        ("\u202e", "\\u202e"),
    ],
)
def test_a_name_takes_one_line(tmp_path, name, line):
    assert escape_name(name) == line
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w", errors="surrogateescape") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert lines(run("ls", path)) == [line]
    assert json.loads(run("ls", "--json", path).stdout)["name"] == name


def test_cat_writes_members_one_after_another(shard_path, members):
    done = run("cat", shard_path, "000.jpg", "001.jpg", "000.json")
    assert done.returncode == 0
    assert done.stdout == members["000.jpg"] + members["000.json"]


def test_cat_of_a_missing_member(shard_path, members):
    done = run("cat", shard_path, "absent", "000.json")
    assert done.returncode == 1
    assert done.stdout == members["000.json"]
    assert b"no member 'absent'" in done.stderr


def test_cat_names_unreadable_fields(shard_path, members, tmp_path):
    (tmp_path / "bad.tar").write_bytes(b"x" * 2048)
    done = run("cat", tmp_path, "absent")
    assert done.returncode == 1
    assert b"bad.tar" in done.stderr
    assert b"no member 'absent' in what could be read of" in done.stderr
    done = run("cat", tmp_path, "000.json")
    assert (done.returncode, done.stdout) == (1, members["000.json"])


def test_cat_takes_names_that_are_not_utf8(tmp_path):
    path = tmp_path / "s.tar"
    name = os.fsdecode(b"\xff.bin")
    with tarfile.open(path, "w", errors="surrogateescape") as tar:
        member = tarfile.TarInfo(name)
        member.size = 2
        tar.addfile(member, io.BytesIO(b"ok"))
    assert run("cat", path, name).stdout == b"ok"


def test_stat_counts(shard_path, members):
    sizes = sorted(len(data) for data in members.values())
    figures = json.loads(run("stat", "--json", shard_path).stdout)
    assert figures["members"] == len(members)
    assert figures["member_bytes"] == sum(sizes)
    assert figures["bytes"] == shard_path.stat().st_size
    assert figures["samples"] == 3
    assert figures["fields"] == {"jpg": 3, "json": 3}
    assert figures["skipped"] == {}
    assert figures["after_end"] is None
    assert figures["size_percentiles"]["0"] == sizes[0]
    assert figures["size_percentiles"]["50"] == sizes[3]
    assert figures["size_percentiles"]["100"] == sizes[-1]
    text = run("stat", shard_path).stdout.decode()
    assert "members  7" in text
    assert "jpg: 3" in text
    text = run("stat", shard_path, shard_path).stdout.decode()
    assert f"members  14 of {2 * sum(sizes):,} bytes" in text


def test_stat_of_an_empty_shard_and_of_one_with_links(make_tar, tmp_path):
    done = run("stat", make_tar({}))
    assert done.returncode == 0
    assert "members  0" in done.stdout.decode()
    path = tmp_path / "links.tar"
    with tarfile.open(path, "w") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.DIRTYPE):
            member = tarfile.TarInfo("x")
            member.type = kind
            tar.addfile(member)
    figures = json.loads(run("stat", "--json", path).stdout)
    assert figures["skipped"] == {"symbolic link": 1, "directory": 2}


def test_verify_of_a_sound_shard(shard_path):
    done = run("verify", shard_path)
    assert (done.returncode, lines(done)) == (0, [f"{shard_path}: ok, 7 members"])
    done = run("verify", "--json", shard_path)
    assert (done.returncode, done.stdout) == (0, b"")


def test_verify_lists_faults(make_tar, tmp_path):
    whole = make_tar({"a.x": b"1", "a.X": b"2"}).read_bytes()
    twice = tmp_path / "twice.tar"
    twice.write_bytes(whole[:2048] + whole)
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole[:600])
    done = run("verify", "--json", twice, cut, tmp_path / "absent.tar")
    assert done.returncode == 1
    faults = [json.loads(line) for line in lines(done)]
    assert [(f["offset"], f["member"]) for f in faults] == [
        (512, "a.x"),
        (1536, "a.X"),
        (1536, "a.X"),
        (0, "a.x"),
    ]
    assert ["later" in f["reason"] for f in faults] == [True, True, False, False]
    assert "ends inside" in faults[-1]["reason"]
    assert b"absent.tar" in done.stderr
    assert f"{cut}: byte 0: a.x: " in run("verify", cut).stdout.decode()


@pytest.mark.parametrize(
    ("behind", "reason"),
    [(None, "another archive"), (b"x" * 100, "data follows"), (bytes(5000), None)],
)
def test_stat_and_verify_describe_data_behind_the_end(make_tar, behind, reason):
    whole = make_tar({"a": b"1"}, "two.tar").read_bytes()
    path = make_tar({"a": b"1"})
    with open(path, "ab") as file:
        file.write(bytes(3 << 20) + (whole if behind is None else behind))
    verified, counted = run("verify", path), run("stat", path)
    assert counted.returncode == 0
    assert verified.returncode == (0 if reason is None else 1)
    if reason is not None:
        at = f"byte {len(whole) + (3 << 20):,}: "
        assert f"{at}{reason}" in verified.stdout.decode()
        assert f"{at}{reason}" in counted.stdout.decode()


@pytest.fixture
def small_demo(monkeypatch):
    """Let the demonstration have few samples; .ci/run runs it as it is."""
    monkeypatch.setattr(demo, "SAMPLES", 100)


@pytest.mark.usefixtures("small_demo")
def test_demo_reads_and_compares(capsys):
    assert main(["demo"]) == 0
    text = capsys.readouterr().out
    assert "reads in every way, all equal to what was stored" in text
    assert text.count(" times\n") == 6
    assert "dataset.fsi" in text


@pytest.mark.usefixtures("small_demo")
def test_demo_keeps_its_shards_and_prints_json(tmp_path, capsys):
    folder = tmp_path / "kept"
    assert main(["demo", "--json", "--out", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    figures = json.loads(out)
    assert set(figures) == {
        "fastshard",
        "python",
        "numpy",
        "reads",
        "shards",
        "dataset",
    }
    assert figures["reads"] > 5000
    for shard in figures["shards"]:
        assert len(fastshard.open_shard(folder / shard["shard"])) == shard["members"]
        for speed in shard["members_per_second"].values():
            assert set(speed) == {"fastshard", "tarfile"}
    assert len(fastshard.open(folder / "dataset")) == figures["dataset"]["samples"]
    assert main(["demo", "--out", str(folder)]) == 1  # what is there stays
    out, err = capsys.readouterr()
    assert out == ""
    assert "File exists" in err


@pytest.mark.parametrize(
    "args", [[], ["ls"], ["cat", "x"], ["nonsense"], ["ls", "-z", "x"]]
)
def test_wrong_usage(args):
    done = run(*args)
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"usage" in done.stderr


def test_version_and_help():
    assert run("--version").stdout.decode() == f"fastshard {fastshard.__version__}\n"
    text = run("--help").stdout.decode()
    for command in ("ls", "cat", "stat", "verify", "demo"):
        assert command in text


def test_the_installed_command_is_the_same(shard_path, members, capsys):
    assert main(["ls", str(shard_path)]) == 0
    assert capsys.readouterr().out.splitlines() == list(members)


def test_interrupting_imports_ends_with_130(monkeypatch):
    class Interrupted:
        def find_spec(self, name, *args):
            if name == "fastshard.cli.program":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "fastshard.cli.program", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert main(["ls", "x.tar"]) == 130


def test_interrupting_ends_with_130(shard_path, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("fastshard.cli.common.open_tar", interrupted)
    assert main(["ls", str(shard_path)]) == 130


def send(numbers):
    """Return a function that sends signals to this process."""

    def send_all(*args, **options):
        for number in numbers:
            signal.raise_signal(number)
        raise FastshardError("the signals did not interrupt")

    return send_all


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_signals_interrupt(shard_path, monkeypatch, capsys, name, status):
    number = getattr(signal, name)
    monkeypatch.setattr("fastshard.cli.common.open_tar", send([number]))
    assert main(["ls", str(shard_path)]) == status
    assert capsys.readouterr().err == ""
    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_second_signal_does_not_disturb_the_first(shard_path, monkeypatch, capsys):
    ended = []

    def clean_up(*args, **options):
        try:
            signal.raise_signal(signal.SIGHUP)
        finally:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            ended.append(True)

    monkeypatch.setattr("fastshard.cli.common.open_tar", clean_up)
    assert main(["ls", str(shard_path)]) == 129
    assert ended


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *args: None])
def test_ignored_and_handled_signals_stay_so(shard_path, monkeypatch, handler):
    before = signal.signal(signal.SIGHUP, handler)  # as `nohup` does
    try:
        failing = send([signal.SIGHUP])
        monkeypatch.setattr("fastshard.cli.common.open_tar", failing)
        assert main(["ls", str(shard_path)]) == 1
        assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_runs_in_a_thread(shard_path):
    status = []
    in_threads(lambda k: status.append(main(["ls", str(shard_path)])), 1)
    assert status == [0]
