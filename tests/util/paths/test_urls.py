"""Parsing of sources and URLs: once each, and without leaks of secrets."""

import os
import pickle
import sys
from collections import Counter
from pathlib import Path

import pytest

from fastshard import FastshardError, RemoteError
from fastshard._util.paths import urls
from fastshard._util.paths.urls import (
    Url,
    common_folder,
    normalize_url,
    parse_path_or_url,
    parse_url,
    redact,
)
from fastshard.dataset.paths.listing import list_shards, parse_source
from fastshard.remote.cache.store import RangeCache
from fastshard.remote.file import RemoteFile, cache_key
from fastshard.remote.options import make_settings
from fastshard.remote.transport import ObjectInfo

SECRET = "S3CR3T"
SIGNED = f"https://h.example/d/a.tar?Signature={SECRET}"


def calls_of(names, task):
    """Count a task's calls of functions of `_util.paths.urls`."""
    calls = Counter()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename == urls.__file__:
            calls[code.co_name] += 1

    sys.setprofile(note)
    try:
        task()
    finally:
        sys.setprofile(None)
    return {name: calls[name] for name in names}


@pytest.mark.parametrize(
    ("text", "scheme", "base", "query", "shown"),
    [
        ("http://h/a.tar", "http", "http://h/a.tar", "", "http://h/a.tar"),
        ("HTTPS://h/a?x=1", "https", "HTTPS://h/a", "?x=1", "HTTPS://h/a?..."),
        ("s3://u:p@b/a.tar", "s3", "s3://u:p@b/a.tar", "", "s3://b/a.tar"),
        ("s3://u:p/?@b/a", "s3", "s3://u:p/", "?@b/a", "s3://b/a"),
        ("hf://datasets/o/n@r/a", "hf", "hf://datasets/o/n@r/a", "", None),
        ("az://b/a@b.tar", "az", "az://b/a@b.tar", "", None),
    ],
)
def test_a_url_has_parts_and_a_text_without_secrets(text, scheme, base, query, shown):
    url = parse_path_or_url(text)
    assert isinstance(url, Url)
    assert (url.text, url.scheme, url.base, url.query) == (text, scheme, base, query)
    assert url.redacted == redact(text) == (text if shown is None else shown)
    assert parse_url(url) is url


@pytest.mark.parametrize(
    "text", ["a.tar", "d/**", "file://h/a.tar", "ftp://h/a", "", "::", "files:a"]
)
def test_a_path_is_returned_unchanged(text):
    assert parse_path_or_url(text) is text


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:///a.tar", "/a.tar"),
        ("file:/a.tar", "/a.tar"),
        ("file:a/b.tar", "a/b.tar"),
        ("FILE://LOCALHOST/a%20b.tar", "/a b.tar"),
        ("file:", ""),
    ],
)
def test_a_file_url_is_its_path(text, path):
    assert parse_path_or_url(text) == path


@pytest.mark.parametrize("password", ["s3cr#t", "s3cret\u2100", "s3cr?t#x", "s3cr[t"])
def test_a_refused_url_shows_no_password(password):
    url = f"http://user:{password}@host/a.tar"

    with pytest.raises(FastshardError) as caught:
        normalize_url(url)

    assert redact(url) == "http://host/a.tar"
    assert "s3cr" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("http://h/a#x", "http://h/a"),
        ("http://h/a#x@y", "http://h/a"),
        ("http://u:p@h/a?q=1#x", "http://h/a?..."),
    ],
)
def test_fragments_are_redacted(url, redacted):
    assert redact(url) == redacted


def test_a_url_has_no_secret_in_its_repr_and_does_not_pickle():
    url = Url(SIGNED)
    assert SECRET not in f"{url!r} {url} {[url]} {parse_source(SIGNED)}"
    with pytest.raises(TypeError, match="secret") as caught:
        pickle.dumps(url)
    assert SECRET not in str(caught.value)


def test_kinds_of_sources(tmp_path):
    (tmp_path / "d").mkdir()
    folder = str(tmp_path / "d")
    assert parse_source(folder).kind == "folder"
    assert parse_source(Path(folder)).parts == (folder,)
    assert parse_source(folder).is_whole
    assert parse_source(folder + "/**")[:2] == ("path", (folder + "/**",))
    assert parse_source(folder + "/**").is_whole
    assert not parse_source(folder + "/*.tar").is_whole
    assert not parse_source([folder]).is_whole
    assert parse_source([folder])[:2] == ("list", (folder,))
    assert parse_source("a.tar::b.tar").parts == ("a.tar::b.tar",)
    assert not parse_source("s3://b/**").is_whole


def test_urls_joined_in_one_source_are_parts():
    found = parse_source("http://[::1]/a.tar::s3://b/c.tar::file:///d.tar")
    texts = [part if isinstance(part, str) else part.text for part in found.parts]
    assert found.kind == "url"
    assert texts == ["http://[::1]/a.tar", "s3://b/c.tar", "/d.tar"]
    assert [url.scheme for url in found.urls] == ["http", "s3"]


def test_secrets_are_for_the_origins_of_named_urls_alone():
    named = parse_source(["http://a.example/1.tar", "x.tar::http://b.example/2.tar"])
    settings = named.settings({"token": SECRET})
    assert {origin.host for origin in settings.origins} == {"a.example"}


def test_a_source_is_classified_once():
    sources = [f"http://h.example/{k:03}.tar?s={SECRET}" for k in range(100)]
    found = calls_of(["is_remote", "redact"], lambda: list_shards(sources))
    assert found == {"is_remote": 100, "redact": 0}


def test_a_directory_is_classified_once(tmp_path):
    for k in range(20):
        (tmp_path / f"{k}.tar").touch()
    found = calls_of(["is_remote"], lambda: list_shards(tmp_path))
    assert found == {"is_remote": 1}


def test_a_url_is_redacted_once_for_all_errors_of_a_file():
    texts = []

    def task():
        url = f"http://127.0.0.1:9/a.tar?Signature={SECRET}"
        options = {"attempts": 1, "timeout": 0.5}
        info = ObjectInfo(1 << 20, '"v1"', 0)
        file = RemoteFile(url, make_settings(options, [url]), info)
        for at in (100, 200, 300):
            with pytest.raises(RemoteError) as caught:
                file.read(at, 10)
            texts.append(str(caught.value))
        texts.append(repr(file))

    assert calls_of(["redact"], task) == {"redact": 1}
    assert all("127.0.0.1:9/a.tar?..." in text for text in texts)
    assert SECRET not in "".join(texts)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (SIGNED, "https://h.example/d/a.tar"),
        (f"s3://u:{SECRET}@bucket/a.tar", "s3://bucket/a.tar"),
        (f"s3://u:{SECRET}?x@bucket/a.tar", "s3://bucket/a.tar"),
        ("s3://bucket/a@b.tar", "s3://bucket/a@b.tar"),
        ("http://h.example/a.tar?mail=u@h", "http://h.example/a.tar"),
        (f"hf://datasets/o/n@{'0' * 40}/a.tar", "hf://datasets/o/n/a.tar"),
        ("hf://datasets/o/n@main/a.tar", "hf://datasets/o/n@main/a.tar"),
    ],
)
def test_cache_keys_have_no_secrets(tmp_path, url, name):
    assert cache_key(url) == name
    cache = RangeCache(str(tmp_path))
    cache.entry(cache_key(url), ObjectInfo(10, '"v1"', 0)).add(0, bytes(10))
    stored = [
        Path(folder, file).read_bytes()
        for folder, _, files in os.walk(tmp_path)
        for file in files
    ]
    assert stored
    assert not any(SECRET.encode() in data for data in stored)


@pytest.mark.parametrize("host", ["bücher.de", "BÜCHER.de", "Bücher.DE:81"])
def test_a_host_that_is_not_ascii_is_encoded_in_any_case(host):
    port = host[9:]
    assert normalize_url(f"http://{host}/Ü") == f"http://xn--bcher-kva.de{port}/%C3%9C"


@pytest.mark.parametrize(
    ("urls", "folder"),
    [
        (["http://h/a.tar", "http://h/b.tar"], "http://h"),
        (["http://h/d/a.tar", "http://h/d/e/b.tar"], "http://h/d"),
        (["http://h/a.tar", "http://i/a.tar"], ""),
        (["hf://datasets/o/n/a.tar", "hf://datasets/o/n/d/b.tar"], "hf://datasets/o/n"),
        (["hf://datasets/o/n/a.tar", "hf://datasets/o/m/a.tar"], ""),
    ],
)
def test_the_folder_above_all_objects(urls, folder):
    assert common_folder(urls) == folder
