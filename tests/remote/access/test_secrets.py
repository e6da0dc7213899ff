"""Secrets in queries, tokens and headers appear in no log, warning or error."""

import http.client
import logging
import traceback
import warnings

import pytest

import fastshard
from fastshard import RemoteError
from fastshard.remote.file import RemoteFile, open_remote
from fastshard.remote.http.fast import FastHttp
from fastshard.remote.options import make_settings
from support.servers.http import Server, redirect_to
from support.servers.messages import plain
from support.tars import write_tar

DATA = bytes(range(256)) * 200
SECRET = "S3CR3T"


class Everything(logging.Handler):
    """Handler that keeps every text a record can be formatted to."""

    def __init__(self):
        super().__init__(logging.NOTSET)
        self.texts = []

    def emit(self, record):
        parts = [record.getMessage(), repr(record.args), repr(vars(record))]
        if record.exc_info:
            parts.append("".join(traceback.format_exception(*record.exc_info)))
        self.texts.append("\n".join(parts))


@pytest.fixture
def logged(monkeypatch, capfd):
    """Return a function for all that was logged, printed or warned of, at DEBUG."""
    handler = Everything()
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    monkeypatch.setattr(http.client.HTTPConnection, "debuglevel", 1)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield lambda: "\n".join(
            [*handler.texts, *(str(one.message) for one in warned), *capfd.readouterr()]
        )
    root.removeHandler(handler)
    root.setLevel(level)


def texts_of(error):
    """Return the texts of an exception and of its causes."""
    parts = ["".join(traceback.format_exception(error))]
    while error is not None:
        parts += [str(error), repr(error), repr(error.args)]
        error = error.__cause__ or error.__context__
    return "\n".join(parts)


@pytest.fixture(params=["fast", "slow"])
def way(request, monkeypatch):
    if request.param == "slow":
        monkeypatch.setattr(FastHttp, "read", lambda *args: False)


def settings_of(url, **options):
    given = {"token": SECRET, "headers": {"X-Key": SECRET, "Cookie": SECRET}}
    return make_settings({"timeout": 1.0, **given, **options}, [url])


def open_url(url, **options):
    return open_remote(url, settings_of(url, **options))


@pytest.mark.usefixtures("way")
def test_responses_and_redirects_are_logged_without_secrets(logged):
    with Server({"/a.tar": DATA, "/b.tar": DATA}) as server:
        server.behave("/a.tar", redirect_to(f"/b.tar?Signature={SECRET}&Expires=1"))
        file = open_url(server.at("/a.tar") + f"?sig={SECRET}&{SECRET}=1")
        assert file.read(20_000, 100) == DATA[20_000:20_100]
        assert file.read_many([(17_000, 5), (50_000, 5)])[0] == DATA[17_000:17_005]
        queries = {request.query for request in server.requests}
    assert queries == {f"sig={SECRET}&{SECRET}=1", f"Signature={SECRET}&Expires=1"}
    text = logged()
    assert SECRET not in text
    assert "/b.tar" in text  # urllib3 still logs requests


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "behaviour",
    [
        "status_500",
        "status_403",
        "reset_midway",
        "not_http",
        "redirect_to_secret",
        "close_at_once",
        "ok_for_range",
    ],
)
def test_failures_and_retries_are_logged_without_secrets(logged, behaviour):
    with Server({"/a.tar": DATA}) as server:
        url = server.at("/a.tar") + f"?Signature={SECRET}"
        file = open_url(url)
        if behaviour == "redirect_to_secret":
            behaviour = redirect_to(f"ftp://u:{SECRET}@other/?x={SECRET}")
        server.behave("/a.tar", behaviour)
        soon = {"timeout": 0.3}
        file = RemoteFile(file.url, settings_of(url, **soon), file.info)
        for read in (lambda: file.read(20_000, 100), lambda: open_url(url, **soon)):
            with pytest.raises(RemoteError) as caught:
                read()
            logging.getLogger("app").debug("failed", exc_info=caught.value)
            assert SECRET not in texts_of(caught.value)
    assert SECRET not in logged()


def test_unreachable_hosts_are_logged_without_secrets(logged):
    for url in (
        f"http://127.0.0.1:9/a.tar?sig={SECRET}",
        f"https://127.0.0.1:9/a.tar?sig={SECRET}",
        f"http://no-such-host.invalid/a.tar?sig={SECRET}",
        f"http://[::ffff:1.2.3.4.5]/a.tar?sig={SECRET}",
    ):
        with pytest.raises((RemoteError, fastshard.FastshardError)) as caught:
            open_url(url, timeout=0.2)
        assert SECRET not in texts_of(caught.value)
    assert SECRET not in logged()


def test_through_a_proxy_the_query_is_sent_and_not_logged(logged, monkeypatch):
    with Server({"/a.tar": DATA}) as server:
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.setenv("no_proxy", "")
        server.answer = lambda request: (
            server.answer_file(request, DATA)
            if request.target == f"http://some.example/a.tar?sig={SECRET}"
            else plain(404)
        )
        file = open_url(f"http://some.example/a.tar?sig={SECRET}", timeout=5.0)
        assert file.read(20_000, 100) == DATA[20_000:20_100]
    assert SECRET not in logged()


def test_a_dataset_is_logged_without_secrets(logged, tmp_path):
    tar = write_tar(
        tmp_path / "0.tar", {f"{i}.bin": bytes([i]) * 999 for i in range(9)}
    )
    with Server({"/0.tar": tar.read_bytes()}) as server:
        url = server.at("/0.tar") + f"?Signature={SECRET}"
        ds = fastshard.open(url, token=SECRET)
        assert len(list(ds)) == 9
    assert SECRET not in logged()


def test_the_hub_is_logged_without_secrets(logged, loopback):
    from support.servers.hub import FakeHub

    with FakeHub({"o/n": {"a.json": b"{}", "a.bin": DATA}}, token=SECRET) as hub:
        hub.private = {"o/n"}
        options = {"endpoint": hub.url, "timeout": 5.0, "token": SECRET}
        settings = make_settings(options, ["hf://datasets/o/n"])
        file = open_remote("hf://datasets/o/n/a.bin", settings)
        assert file.read(20_000, 100) == DATA[20_000:20_100]
        with pytest.raises(fastshard.FastshardError, match="no shard"):
            fastshard.open("hf://datasets/o/n", **options)
        text = logged()
        signatures = list(hub.cdn.deadlines)
    assert signatures
    assert not any(signature in text for signature in signatures)
    assert SECRET not in text


def test_other_users_of_urllib3_log_as_before(logged):
    """The logs of a program's own requests are unchanged."""
    import urllib3

    with Server({"/a.tar": DATA}) as server:
        open_url(server.at("/a.tar"))
        with urllib3.PoolManager() as own:
            own.request("GET", server.at("/a.tar") + "?its=own")
    assert "/a.tar?its=own" in logged()
