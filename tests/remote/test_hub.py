"""Datasets of the Hugging Face hub: opening, listing, secrecy of the token."""

import os
import pickle
import re
import subprocess
import sys
import threading

import pytest

import fastshard
from fastshard.errors import FastshardError
from fastshard.remote.hub import hub_for, parse_hub_url
from fastshard.remote.options import make_settings
from support.marks import not_sanitized
from support.servers.http import Server
from support.servers.hub import FakeHub, commit_of
from support.servers.messages import plain
from support.tars import write_tar

REPO = "owner/name"
SOURCE = f"hf://datasets/{REPO}"
JSON = "application/json"
SECRET = "hf_verysecret"

pytestmark = [pytest.mark.usefixtures("loopback"), not_sanitized]


def tar_of(folder, number, name="x"):
    """Return a shard with one sample of a text and a large field."""
    members = {f"{number}.txt": f"{name} {number}".encode()}
    members[f"{number}.bin"] = bytes([number]) * 40_000
    return write_tar(folder / "made.tar", members).read_bytes()


@pytest.fixture
def hub(tmp_path):
    """Serve a hub: a dataset with an older revision, gated and private ones."""
    files = {f"train-{i}.tar": tar_of(tmp_path, i) for i in range(3)}
    files |= {f"sub/a-{i}.tar": tar_of(tmp_path, i, "sub") for i in (2, 10)}
    files |= {"sub/deep/é b.tar": tar_of(tmp_path, 7, "deep"), "README.md": b"# Hi"}
    old = {"train-0.tar": tar_of(tmp_path, 0, "old")}
    gated = {"a.tar": tar_of(tmp_path, 1, "gated")}
    with FakeHub(
        {REPO: files, "owner/gated": gated, "owner/private": dict(gated)},
        revisions={REPO: {"v1": old, "refs/pr/1": dict(old)}},
        token=SECRET,
        gated={"owner/gated"},
        private={"owner/private"},
    ) as hub:
        yield hub


def open_dataset(hub, source, **options):
    return fastshard.open(source, endpoint=hub.url, timeout=5.0, **options)


def texts(dataset):
    return [str(sample["txt"], "utf-8") for sample in dataset]


def tokens(server):
    return {request.headers.get("authorization") for request in server.requests}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/train-1.tar", ["x 1"]),
        ("/train-{2..0}.tar", ["x 2", "x 1", "x 0"]),
        ("", ["x 0", "x 1", "x 2"]),
        ("/sub", ["sub 2", "sub 10"]),
        ("/sub/", ["sub 2", "sub 10"]),
        ("/sub/**", ["sub 2", "sub 10", "deep 7"]),
        ("/**", ["sub 2", "sub 10", "deep 7", "x 0", "x 1", "x 2"]),
        ("/train-[01].tar", ["x 0", "x 1"]),
        ("/*/a-*.tar", ["sub 2", "sub 10"]),
        ("/sub/deep/é b.tar", ["deep 7"]),
        ("@v1/train-0.tar", ["old 0"]),
        ("@v1", ["old 0"]),
        ("@refs/pr/1", ["old 0"]),
        ("@refs%2Fpr%2F1/train-*", ["old 0"]),
    ],
)
def test_sources(hub, source, expected):
    assert texts(open_dataset(hub, SOURCE + source)) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", ["x 0", "x 1", "x 2"]),
        ("/sub", ["sub 2", "sub 10"]),
        ("/*", ["x 0", "x 1", "x 2"]),
        ("/*/*.tar", ["sub 2", "sub 10"]),
        ("/**", ["sub 2", "sub 10", "deep 7", "x 0", "x 1", "x 2"]),
        ("/s*/**", ["sub 2", "sub 10", "deep 7"]),
        ("/**/a-*.tar", ["sub 2", "sub 10"]),
        ("/.cache/*.tar", ["hidden 1"]),
        ("/sub/.*.tar", ["hidden 1"]),
    ],
)
def test_hidden_files_and_folders_are_skipped_as_locally(
    hub, tmp_path, source, expected
):
    hidden = tar_of(tmp_path, 1, "hidden")
    names = ("._train-0.tar", ".cache/x.tar", "sub/._a-2.tar", "sub/.deep/x.tar")
    hub.repos[REPO] |= dict.fromkeys(names, hidden)
    assert texts(open_dataset(hub, SOURCE + source)) == expected


def test_hidden_tars_alone_are_not_shards(hub, tmp_path):
    hub.repos[REPO] = {"._0.tar": b"", ".cache/0.tar": b""}
    with pytest.raises(fastshard.FastshardError, match="begin with a dot are skipped"):
        open_dataset(hub, f"{SOURCE}/**")


@pytest.mark.parametrize(
    ("source", "counts"),
    [("", (1, 2)), ("/**", (1, 3)), ("/*", (1, 2)), ("/train-[0-9].tar", None)],
)
def test_one_warning_names_the_tars_that_are_left_out(hub, source, counts):
    names = ("a.TAR", "b.tar.gz", "c.tar.gz", "sub/d.tar.gz", ".e.tgz", "f.gz")
    hub.repos[REPO] |= dict.fromkeys(names, b"")
    if counts is None:
        assert len(open_dataset(hub, SOURCE + source)) == 3
        return
    with pytest.warns(UserWarning, match=f"{sum(counts)} tars are left out") as caught:
        assert len(open_dataset(hub, SOURCE + source)) >= 3
    (warning,) = caught
    text = str(warning.message)
    assert re.search(rf"{counts[0]} .TAR, as hf://\S*/a\.TAR, rename it", text)
    assert re.search(rf"{counts[1]} .tar.gz, as hf://\S*/b\.tar\.gz, compress", text)


def test_the_default_revision(hub):
    assert texts(open_dataset(hub, SOURCE, revision="v1")) == ["old 0"]
    assert texts(open_dataset(hub, f"{SOURCE}@main/sub", revision="v1")) == [
        "sub 2",
        "sub 10",
    ]
    commit = commit_of(REPO, hub.revisions[REPO]["v1"])
    assert texts(open_dataset(hub, SOURCE, revision=commit)) == ["old 0"]


def test_a_listing_is_of_one_commit(hub):
    commit = commit_of(REPO, hub.repos[REPO])
    dataset = open_dataset(hub, f"{SOURCE}::{SOURCE}/sub")
    assert {path.split("/")[4] for path in dataset.shards.paths} == {f"name@{commit}"}

    requested = [r.path for r in hub.requests if "/revision/" in r.path]
    assert requested == [f"/api/datasets/{REPO}/revision/main"]
    hub.revisions[REPO]["before"] = dict(hub.repos[REPO])
    del hub.repos[REPO]["train-0.tar"]
    assert texts(dataset)[0] == "x 0"
    copy = pickle.loads(pickle.dumps(dataset))
    assert texts(copy) == texts(dataset)


def test_an_index_beside_a_shard_is_used(hub, tmp_path):
    path = tmp_path / "train-0.tar"
    path.write_bytes(hub.repos[REPO]["train-0.tar"])
    fastshard.build_index(path, format="json")
    index = path.with_suffix(".json").read_bytes()
    hub.repos[REPO]["train-0.json"] = index
    shard = fastshard.open_shard(f"{SOURCE}/train-0.tar", endpoint=hub.url)

    assert shard.index == f"{SOURCE}/train-0.json"
    assert shard["0.txt"] == b"x 0"


def test_the_index_of_a_folder_is_used(hub, tmp_path):
    folder = tmp_path / "all"
    folder.mkdir()
    names = [f"train-{i}.tar" for i in range(3)]
    for name in names:
        (folder / name).write_bytes(hub.repos[REPO][name])
    fastshard.build_index(folder)
    for path in folder.glob("*.fsi"):
        hub.repos[REPO][path.name] = path.read_bytes()
    dataset = open_dataset(hub, SOURCE)
    hub.forget()

    assert len(dataset) == 3
    assert not hub.requests
    assert texts(dataset) == ["x 0", "x 1", "x 2"]


def test_a_tree_of_many_pages(hub):
    hub.repos[REPO] |= {f"many/{i:03}.tar": b"" for i in range(41)}
    found = list(hub_for(make_settings({"endpoint": hub.url}, [SOURCE])).list(SOURCE))

    assert len(found) == len(hub.repos[REPO])
    assert sum("cursor=" in request.query for request in hub.requests) > 10


def test_a_listing_without_an_end_is_an_error(hub, monkeypatch):
    monkeypatch.setattr("fastshard.remote.hub.MOST_PAGES", 5)
    right = hub.answer
    hub.answer = lambda request: right(request).add(
        "Link", f'<{hub.url}{request.target}>; rel="next"'
    )
    with pytest.raises(fastshard.RemoteError, match="more than 5 pages"):
        hub_for(make_settings({"endpoint": hub.url}, [SOURCE])).list_files(SOURCE)
    assert len(hub.requests) == 5


def test_the_next_page_on_another_host_gets_no_token(hub):
    with Server() as other:
        page = plain(200, "[]").set("Content-Type", "application/json")
        other.answer = lambda request: page
        right = hub.answer
        hub.answer = lambda request: right(request).set(
            "Link", f'<{other.at("/next")}>; rel="next"'
        )
        settings = make_settings({"endpoint": hub.url, "token": SECRET}, [SOURCE])
        assert hub_for(settings).list_files(f"{SOURCE}/sub")
        assert tokens(hub) == {f"Bearer {SECRET}"}
        assert tokens(other) == {None}


@pytest.mark.parametrize("status", ["status_503_retry_after", "status_500"])
def test_a_listing_is_retried(hub, status):
    hub.behave(f"/api/datasets/{REPO}/revision/main", status, times=1)
    assert texts(open_dataset(hub, f"{SOURCE}/sub")) == ["sub 2", "sub 10"]


def test_a_listing_is_retried_whatever_the_hub_calls_its_error(hub):
    right = hub.answer
    named = plain(500, '{"error":"Unavailable"}').set("Content-Type", JSON)
    hub.answer = lambda request: named if len(hub.requests) == 1 else right(request)
    assert texts(open_dataset(hub, f"{SOURCE}/sub")) == ["sub 2", "sub 10"]


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream"])
def test_a_listing_by_a_mirror_may_have_another_type(hub, kind):
    right = hub.answer
    hub.answer = lambda request: (
        right(request).set("Content-Type", kind)
        if request.path.startswith("/api/")
        else right(request)
    )
    assert texts(open_dataset(hub, f"{SOURCE}/sub")) == ["sub 2", "sub 10"]


def test_a_name_with_a_surrogate_does_not_end_a_listing(hub):
    path = f"/api/datasets/{REPO}/tree/main"
    body = b'[{"type": "file", "path": "a\\ud800.tar", "size": 1}]'
    right = hub.answer
    hub.answer = lambda request: (
        right(request).with_body(body).drop("Link")
        if request.path == path
        else right(request)
    )
    settings = make_settings({"endpoint": hub.url}, [SOURCE])
    assert len(hub_for(settings).list_files(SOURCE)) == 1


def test_an_outage_of_the_hub_shorter_than_the_timeout_is_survived(hub):
    Server.__exit__(hub)  # not the CDN
    timer = threading.Timer(1.0, hub.come_back)
    timer.start()
    found = fastshard.open(f"{SOURCE}/sub", endpoint=hub.url, timeout=20.0)
    assert texts(found) == ["sub 2", "sub 10"]
    timer.join()


def test_a_failing_listing_ends_with_an_error(hub):
    hub.behave(None, "status_500")
    with pytest.raises(fastshard.RemoteError, match="after 2 attempts") as caught:
        open_dataset(hub, SOURCE, attempts=2)
    assert caught.value.status == 500


@pytest.mark.parametrize("behaviour", ["not_http", "close_at_once", "status_404"])
def test_a_hostile_response_to_a_listing(hub, behaviour):
    hub.behave(None, behaviour)
    with pytest.raises(fastshard.RemoteError) as caught:
        open_dataset(hub, SOURCE, attempts=1)
    assert caught.value.url.startswith(f"{hub.url}/datasets/{REPO}")


@pytest.mark.parametrize("body", [b"{", b"[]", b"[1]", b'[{"type": "file"}]', b"null"])
def test_a_listing_with_unexpected_content(hub, body):
    settings = make_settings({"endpoint": hub.url}, [SOURCE])
    path = f"/api/datasets/{REPO}/tree/main"
    right = hub.answer

    def answer(request):
        answer = right(request)
        return answer.with_body(body).drop("Link") if request.path == path else answer

    hub.answer = answer
    try:
        assert list(hub_for(settings).list(SOURCE)) == []
        assert body == b"[]"
    except fastshard.RemoteError as error:
        assert "no valid response" in str(error)


@pytest.mark.parametrize("repo", ["owner/gated", "owner/private"])
@pytest.mark.parametrize("path", ["", "/a.tar"])
def test_a_refusal_says_how_to_get_access(hub, repo, path):
    source = f"hf://datasets/{repo}{path}"
    for token in ("", "wrong"):
        with pytest.raises(fastshard.RemoteError) as caught:
            texts(open_dataset(hub, source, token=token))
        error = caught.value
        assert error.status in (401, 403, 404)
        assert "wrong" not in str(error)
        if error.status != 404:
            assert f"{hub.url}/datasets/{repo}" in str(error)
            assert "hf auth login" in str(error)
    assert texts(open_dataset(hub, source, token=SECRET)) == ["gated 1"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (f"{SOURCE}/none.tar", "Entry not found"),
        (f"{SOURCE}/none", "no folder 'none'"),
        (f"{SOURCE}@v2", "no revision 'v2'"),
        (f"{SOURCE}@v2/train-0.tar", "Invalid rev id: v2"),
        ("hf://datasets/owner/none", "owner/none does not exist"),
        ("hf://datasets/owner/none/a.tar", "Repository not found"),
    ],
)
def test_missing_files_and_datasets(hub, source, words):
    with pytest.raises(fastshard.RemoteNotFoundError, match=words) as caught:
        texts(open_dataset(hub, source, token=SECRET))
    assert isinstance(caught.value, fastshard.RemoteShardNotFoundError)
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.status == 404
    assert "?" not in caught.value.url


def test_a_folder_without_shards(hub):
    hub.repos[REPO]["docs/a.md"] = b""
    with pytest.raises(FastshardError, match=r"no shard.* it has 1 md file") as caught:
        open_dataset(hub, f"{SOURCE}/docs")
    assert isinstance(caught.value, fastshard.ShardNotFoundError)
    hub.repos[REPO]["docs/a.tar.gz"] = b""
    with pytest.raises(fastshard.ShardNotFoundError, match="compressed with gzip"):
        open_dataset(hub, f"{SOURCE}/docs")
    hub.repos[REPO]["docs/train/0.tar"] = b""
    with pytest.raises(fastshard.ShardNotFoundError, match=r"docs/\*\*` takes all"):
        open_dataset(hub, f"{SOURCE}/docs")


@pytest.mark.parametrize("source", [SOURCE, f"{SOURCE}/", f"{SOURCE}@main"])
def test_a_repository_with_shards_in_one_folder(hub, tmp_path, source):
    shards = {f"data/train-{i}.tar": tar_of(tmp_path, i) for i in (10, 2)}
    hub.repos[REPO] = {**shards, "README.md": b"# Hi"}
    dataset = open_dataset(hub, source)
    assert texts(dataset) == ["x 2", "x 10"]
    assert all("@" in path for path in dataset.shards.paths)


def test_shards_in_several_folders_are_not_joined(hub, tmp_path):
    names = ("train/0.tar", "validation/0.tar")
    hub.repos[REPO] = {name: tar_of(tmp_path, i) for i, name in enumerate(names)}
    with pytest.raises(fastshard.ShardNotFoundError, match=r"train/0.*\*\*` takes all"):
        open_dataset(hub, SOURCE)
    hub.repos[REPO] = {"sub/data/0.tar": b""}
    with pytest.raises(fastshard.ShardNotFoundError, match="takes all"):
        open_dataset(hub, f"{SOURCE}/sub")  # a folder that was named has its own


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hf://buckets/owner/name/a.tar", "a bucket of the hub is not read"),
        ("hf://buckets/owner/name", "hf buckets sync hf://buckets/owner/name"),
        ("hf://models/owner/name/a.tar", "names a model"),
        ("hf://owner/name/a.tar", "hf://datasets/"),
        ("hf://owner/name", "hf://datasets/"),
        ("hf://spaces/owner/name/a.tar", "hf://datasets/"),
        ("hf://datasets/name", "hf://datasets/owner/name"),
        ("hf://datasets/owner/na me/a.tar", "not a valid dataset name"),
        (f"{SOURCE}/../other/a.tar", "must not have empty parts"),
        (f"{SOURCE}/%2e%2e/a.tar", "must not have empty parts"),
    ],
)
def test_invalid_hub_urls(hub, url, words):
    with pytest.raises(FastshardError, match=words):
        len(open_dataset(hub, url))
    assert not hub.requests


def test_every_path_survives_a_round_trip_through_its_url():
    place = parse_hub_url(f"{SOURCE}@refs%2Fpr%2F1/50%25 %3F/a#b.tar")
    assert place == (REPO, "refs/pr/1", "50% ?/a#b.tar")
    assert parse_hub_url(place.text) == place


def test_the_cdn_never_sees_the_token(hub):
    assert texts(open_dataset(hub, f"{SOURCE}/sub", token=SECRET)) == [
        "sub 2",
        "sub 10",
    ]

    assert tokens(hub) == {f"Bearer {SECRET}"}
    assert hub.cdn.requests
    assert tokens(hub.cdn) == {None}


def test_expired_signatures_are_requested_again(hub):
    dataset = open_dataset(hub, f"{SOURCE}/train-{{0..2}}.tar")
    assert len(dataset) == 3
    hub.expire()
    hub.forget()

    assert bytes(dataset[1]["bin"]) == b"\x01" * 40_000
    assert [r.path.rpartition("/")[2] for r in hub.requests] == ["train-1.tar"]


def token_of_the_process():
    return SECRET


def test_a_token_by_a_function(hub):
    source = "hf://datasets/owner/gated"
    dataset = open_dataset(hub, source, token=token_of_the_process)

    copy = pickle.loads(pickle.dumps(dataset))
    assert texts(copy) == ["gated 1"]
    assert SECRET.encode() not in pickle.dumps(dataset)


def test_the_environment_s_token_and_endpoint(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url + "/")
    monkeypatch.setenv("HF_TOKEN", f" {SECRET}\n")
    dataset = fastshard.open("hf://datasets/owner/private")

    assert texts(dataset) == ["gated 1"]
    assert tokens(hub) == {f"Bearer {SECRET}"}
    assert SECRET.encode() not in pickle.dumps(dataset)
    hub.forget()
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    fastshard.open(SOURCE)
    assert tokens(hub) == {None}


def test_the_token_of_a_login(hub, monkeypatch, tmp_path):
    from huggingface_hub import constants

    path = tmp_path / "token"
    path.write_text(SECRET)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(path))
    assert texts(open_dataset(hub, "hf://datasets/owner/gated/a.tar")) == ["gated 1"]


def test_a_token_for_other_hosts_is_not_sent_to_the_hub(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    options = {"endpoint": hub.url, "token": "other", "headers": {"X-Key": "other"}}
    settings = make_settings(options, ["http://127.0.0.1:1/a.tar"])

    hub_for(settings).head(f"{SOURCE}/train-0.tar", 10)
    assert tokens(hub) == {f"Bearer {SECRET}"}
    assert "x-key" not in hub.requests[0].headers


def test_the_hubs_token_is_not_sent_to_other_hosts(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    with Server({"/b.tar": hub.repos[REPO]["train-1.tar"]}) as other:
        source = f"{SOURCE}/train-0.tar::{other.at('/b.tar')}"
        assert texts(open_dataset(hub, source)) == ["x 0", "x 1"]
        assert tokens(other) == {None}
        assert tokens(hub) == {f"Bearer {SECRET}"}


@pytest.mark.parametrize("token", ["a\nb", "a\x00b", "ä"])
def test_an_invalid_token_is_not_shown(hub, token):
    with pytest.raises(FastshardError) as caught:
        open_dataset(hub, f"{SOURCE}/train-0.tar", token=token)
    assert token not in str(caught.value)


def test_the_token_appears_nowhere(hub):
    source = "hf://datasets/owner/gated"
    dataset = open_dataset(hub, source, token=SECRET)
    with pytest.raises(FastshardError, match="not pickled"):
        pickle.dumps(open_dataset(hub, source, token=SECRET))
    hub.token = "another"
    with pytest.raises(fastshard.RemoteError) as caught:
        texts(dataset)
    error = caught.value

    shown = [repr(dataset), str(dataset.shards.paths), repr(error), str(error)]
    shown += [str(vars(error)), str(pickle.dumps(error))]
    assert SECRET not in "\n".join(shown)


def run(code, environment):
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_nothing_is_listed_offline(hub, tmp_path):
    with pytest.raises(FastshardError, match="offline"):
        open_dataset(hub, SOURCE, offline=True, cache_dir=tmp_path)
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "1"}
    found = run(f"import fastshard; fastshard.open({SOURCE!r})", environment)
    assert "HF_HUB_OFFLINE is set" in found.stderr
    assert not hub.requests


WITHOUT = """
import sys
sys.modules["huggingface_hub"] = None
import fastshard
for source in ("hf://datasets/owner/gated", "hf://datasets/owner/gated/a.tar"):
    print(bytes(fastshard.open(source)[0]["txt"]))
"""


def test_datasets_are_listed_and_read_without_huggingface_hub(hub):
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": SECRET}
    found = run(WITHOUT, environment)
    assert found.stderr == ""
    assert found.stdout.splitlines() == ["b'gated 1'"] * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_reads_by_itself(hub):
    dataset = open_dataset(hub, SOURCE)
    expected = texts(dataset)
    child = os.fork()
    if child == 0:
        os._exit(0 if texts(dataset) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_hub_that_was_never_reached_is_an_error_soon(monkeypatch):
    monkeypatch.setattr("fastshard.remote.options.FIRST_TIMEOUT", 0.3)
    url = "hf://datasets/owner/name"
    settings = make_settings({"endpoint": "http://127.0.0.1:9"}, [url])
    with pytest.raises(fastshard.RemoteError, match="timeout= waits longer"):
        hub_for(settings).pin_revision(url)
