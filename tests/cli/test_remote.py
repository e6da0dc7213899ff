"""Command line on URLs."""

import json

import pytest

import fastshard
from fastshard.cli import main
from support.marks import not_sanitized
from support.servers.http import Server

pytestmark = not_sanitized  # no compiled code is involved


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for k in range(2):
        with fastshard.ShardWriter(str(folder / f"t-{k}.tar")) as writer:
            for i in range(20):
                writer.write({"__key__": f"{k}{i:03}", "txt": f"text {i}" * 300})
    with Server(
        {f"/d/{p.name}": p.read_bytes() for p in folder.glob("*.tar")}
    ) as server:
        yield server


def test_members_are_listed_and_written_out(server, capfdbinary):
    assert main(["ls", server.at("/d/t-0.tar")]) == 0
    assert capfdbinary.readouterr().out.splitlines()[3] == b"0003.txt"

    assert main(["cat", server.at("/d/") + "t-{0..1}.tar", "1007.txt"]) == 0
    assert capfdbinary.readouterr().out == b"text 7" * 300


def test_stat_on_urls(server, capsys):
    assert main(["stat", "--json", server.at("/d/t-0.tar")]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["members"], figures["samples"]) == (20, 20)


def test_faults_are_found(server, capsys):
    assert main(["verify", server.at("/d/t-0.tar"), server.at("/d/t-1.tar")]) == 0
    broken = bytearray(server.files["/d/t-1.tar"])
    broken[2560 + 148] ^= 1
    server.files["/d/t-1.tar"] = bytes(broken)

    assert main(["verify", server.at("/d/t-1.tar")]) == 1
    assert "byte 2,560" in capsys.readouterr().out


def test_a_signature_is_not_printed(server, capsys):
    assert main(["verify", server.at("/d/t-0.tar") + "?sig=secret"]) == 0
    out, err = capsys.readouterr()
    assert "t-0.tar?...: ok, 20 members" in out
    assert "secret" not in out + err

    assert main(["cat", server.at("/d/t-0.tar") + "?sig=secret", "absent"]) == 1
    out, err = capsys.readouterr()
    assert "no member 'absent' in " in err
    assert "secret" not in out + err


def test_indexes_of_urls_are_written_locally(server, tmp_path, capsys):
    source, out = server.at("/d/") + "t-{0..1}.tar", tmp_path / "indexes"
    assert main(["index", source]) == 1
    assert "--out" in capsys.readouterr().err

    assert main(["index", source, "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {
        "dataset.fsi",
        "t-0.fsi",
        "t-1.fsi",
    }
    for path in out.iterdir():
        server.files[f"/d/{path.name}"] = path.read_bytes()
    ds = fastshard.open(server.at("/d/"))
    assert ds["1007"]["txt"] == b"text 7" * 300
    assert main(["verify", source]) == 0
    assert "dataset.fsi: ok" in capsys.readouterr().out


def test_warm_caches_shards(server, tmp_path, capsys):
    source, kept = server.at("/d/") + "t-{0..1}.tar", str(tmp_path / "kept")

    assert main(["cache", "warm", source, "--cache-dir", kept]) == 0
    server.forget()
    shard = fastshard.open_shard(server.at("/d/t-1.tar"), cache_dir=kept, offline=True)
    assert (shard.mode, shard["1007.txt"]) == ("mmap", b"text 7" * 300)
    assert not server.requests

    capsys.readouterr()
    assert main(["cache", "ls", "--cache-dir", kept]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("whole" in line and "t-1.tar" in line for line in lines) == 1
    assert main(["cache", "clear", "--cache-dir", kept]) == 0
    main(["cache", "ls", "--cache-dir", kept])
    assert "t-1.tar" not in capsys.readouterr().out


def test_warm_fails_for_a_wrong_sha256(server, tmp_path, capsys):
    index = {"hash_lfs": "0" * 64, "files": {}}
    server.files["/d/t-0.json"] = json.dumps(index).encode()
    source = server.at("/d/t-0.tar")

    assert main(["cache", "warm", source, "--cache-dir", str(tmp_path / "kept")]) == 1
    assert "sha256" in capsys.readouterr().err


def test_a_token_is_read_from_a_file(server, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("hf_secret\n")

    assert main(["ls", "--token-file", str(secret), server.at("/d/t-0.tar")]) == 0
    sent = {request.headers.get("authorization") for request in server.requests}
    assert sent == {"Bearer hf_secret"}


def test_a_missing_url_is_one_line(server, capsys):
    assert main(["ls", server.at("/d/none.tar")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "status 404" in error
