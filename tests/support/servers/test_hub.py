"""Tests of the fake hub: its answers are those of the hub."""

from __future__ import annotations

import json
import time

import pytest

from support.marks import not_sanitized
from support.servers.clients import fetch, follow
from support.servers.hub import FakeHub

DATA = bytes(range(256)) * 4
REPO = "owner/name"
FILES = {
    "README.md": b"# Read me",
    "data/train-0.tar": DATA,
    "data/train-1.tar": DATA[::-1],
    "data/deep/é.tar": b"x",
    "dataset.json": b"{}",
}

pytestmark = not_sanitized  # nothing of it is in C


@pytest.fixture
def hub():
    repos = {REPO: dict(FILES), "owner/gated": {"a.tar": b"a"}}
    repos |= {"owner/private": {"a.tar": b"a"}, "plain": {"a.tar": b"a"}}
    with FakeHub(
        repos,
        revisions={
            REPO: {"v1": {"old.tar": b"old"}, "refs/convert/parquet": {"p": b""}}
        },
        token="right",
        gated={"owner/gated"},
        private={"owner/private"},
    ) as hub:
        yield hub


def fetch_json(url, headers=()):
    status, known, body = fetch(url, headers)
    return status, known, json.loads(body)


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def test_a_dataset_as_the_hub_tells_it(hub):
    status, _, info = fetch_json(f"{hub.url}/api/datasets/{REPO}")
    _, _, old = fetch_json(f"{hub.url}/api/datasets/{REPO}/revision/v1")

    assert status == 200
    assert (info["id"], info["private"], info["gated"]) == (REPO, False, False)
    assert [s["rfilename"] for s in info["siblings"]] == sorted(FILES)
    assert [s["rfilename"] for s in old["siblings"]] == ["old.tar"]
    assert len(info["sha"]) == 40
    assert info["sha"] != old["sha"]
    assert fetch_json(f"{hub.url}/api/datasets/{REPO}/revision/{old['sha']}")[2] == old
    assert fetch_json(f"{hub.url}/api/datasets/plain")[2]["id"] == "plain"


def test_a_tree_comes_in_pages(hub):
    url, paths, pages = f"{hub.url}/api/datasets/{REPO}/tree/main?recursive=true", [], 0
    while url:
        _, headers, entries = fetch_json(url)
        assert len(entries) <= 2
        paths += [entry["path"] for entry in entries]
        pages += 1
        link = headers["Link"]
        assert link is None or link.endswith('>; rel="next"')
        url = link and link[1 : link.index(">")]

    assert paths == sorted([*FILES, "data", "data/deep"])
    assert pages == 4
    folder = fetch_json(f"{hub.url}/api/datasets/{REPO}/tree/main/data/deep")[2]
    assert [entry["path"] for entry in folder] == ["data/deep/é.tar"]


def test_large_files_are_elsewhere_until_the_address_expires(hub):
    url = hub.resolve_url(REPO, "data/train-0.tar")
    status, headers, _ = fetch(url, {"Range": "bytes=1-3"}, "HEAD")
    there = headers["Location"]

    assert status == 302
    assert headers["X-Linked-Size"] == "1024"
    assert headers["X-Linked-Etag"] == fetch(there)[1]["ETag"]
    assert there.startswith(hub.cdn.url)
    assert fetch(there, {"Range": "bytes=1-3"})[2] == DATA[1:4]
    hub.expire()
    assert fetch(there)[0] == 403
    hub.lifetime = 0.01
    late = fetch(url)[1]["Location"]
    time.sleep(0.02)
    assert fetch(late)[0] == 403
    assert all("authorization" not in r.headers for r in hub.cdn.requests)


@pytest.mark.parametrize(
    "name", ["redirect_once", "redirect_relative", "redirect_many"]
)
def test_behaviours_of_a_hub_and_its_cdn(hub, name):
    hub.behave(None, name, 1)
    hub.cdn.behave(None, name)
    url = hub.resolve_url(REPO, "data/train-0.tar")

    status, _, body = follow(url, {"Range": "bytes=3-900"})

    assert (status, body) == (206, DATA[3:901])


def test_small_files_come_at_once(hub):
    status, headers, body = fetch(
        hub.resolve_url(REPO, "README.md"), {"Range": "bytes=2-"}
    )

    assert (status, body) == (206, b"Read me")
    assert len(headers["X-Repo-Commit"]) == 40


@pytest.mark.parametrize(
    ("repo", "path", "revision", "headers", "status", "code"),
    [
        (REPO, "none.tar", "main", {}, 404, "EntryNotFound"),
        (REPO, "old.tar", "v1", {}, 302, None),
        (REPO, "p", "refs/convert/parquet", {}, 302, None),
        (REPO, "old.tar", "v2", {}, 404, "RevisionNotFound"),
        ("owner/none", "a.tar", "main", {}, 401, "RepoNotFound"),
        ("owner/none", "a.tar", "main", bearer("right"), 404, "RepoNotFound"),
        ("owner/private", "a.tar", "main", {}, 401, "RepoNotFound"),
        ("owner/private", "a.tar", "main", bearer("wrong"), 404, "RepoNotFound"),
        ("owner/private", "a.tar", "main", bearer("right"), 302, None),
        ("owner/gated", "a.tar", "main", {}, 401, "GatedRepo"),
        ("owner/gated", "a.tar", "main", bearer("wrong"), 403, "GatedRepo"),
        ("owner/gated", "a.tar", "main", bearer("right"), 302, None),
    ],
)
def test_refusals(hub, repo, path, revision, headers, status, code):
    got, known, body = fetch(hub.resolve_url(repo, path, revision), headers)

    assert (got, known["X-Error-Code"]) == (status, code)
    if code is not None:
        assert json.loads(body)["error"] == known["X-Error-Message"]


def test_the_client_of_the_hub_understands_it(hub, tmp_path):
    hf = pytest.importorskip("huggingface_hub")
    api = hf.HfApi(endpoint=hub.url, token=False)
    options = {"repo_type": "dataset"}

    entries = list(api.list_repo_tree(REPO, recursive=True, expand=True, **options))
    info = api.repo_info(REPO, files_metadata=True, **options)
    sizes = {e.path: e.size for e in entries if isinstance(e, hf.hf_api.RepoFile)}

    assert sizes == {path: len(data) for path, data in FILES.items()}
    assert {s.rfilename: s.size for s in info.siblings} == sizes
    large = next(s for s in info.siblings if s.rfilename == "data/train-0.tar")
    assert large.lfs == next(e.lfs for e in entries if e.path == large.rfilename)
    for path, data in FILES.items():
        found = hf.hf_hub_download(
            REPO, path, cache_dir=tmp_path, endpoint=hub.url, token=False, **options
        )
        with open(found, "rb") as file:
            assert file.read() == data
    errors = hf.errors
    with pytest.raises(errors.RevisionNotFoundError):
        api.repo_info(REPO, revision="v2", **options)
    with pytest.raises(errors.RepositoryNotFoundError):
        api.repo_info("owner/none", **options)
    url = hub.resolve_url("owner/gated", "a.tar")
    with pytest.raises(errors.GatedRepoError):
        hf.get_hf_file_metadata(url, token=False, endpoint=hub.url)
