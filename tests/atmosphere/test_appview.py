"""AppViews: queries without a token, procedures through the session's server."""

import pickle

import pytest

from fastshard.errors import (
    AppViewError,
    AppViewRequiredError,
    AppViewUnavailableError,
    SessionError,
    XrpcError,
)
from fastshard.typed import Atmosphere
from support.servers.atproto.hostile import ANSWERS, say
from support.servers.atproto.xrpc import Reply, XrpcServer

LIST = "science.alt.dataset.listEntries"
PUBLISH = "science.alt.dataset.publishSchema"
URI = "at://did:plc:abc/science.alt.dataset.entry/k"


class FakeAppView(XrpcServer):
    """An AppView with one entry, which echoes questions."""

    def respond(self, call):
        asked = {"method": call.nsid.rpartition(".")[2], "params": call.params}
        return Reply({"entries": [asked], "lenses": [asked], **asked})


@pytest.fixture
def appview():
    with FakeAppView() as server:
        yield server


@pytest.fixture
def client(fake_pds, appview):
    return Atmosphere.login(
        "alice.test",
        "password",
        base_url=fake_pds.url,
        plc_url=fake_pds.plc.url,
        appview=appview.url,
        timeout=20,
    )


def test_an_appview_has_a_url_and_a_did(client, appview):
    assert client.has_appview
    assert client.appview_url == appview.url
    assert client.appview_did == f"did:web:127.0.0.1%3A{appview.port}"


@pytest.mark.parametrize(
    ("given", "url", "did"),
    [
        ("https://a.example", "https://a.example", "did:web:a.example"),
        ("https://a.example/", "https://a.example", "did:web:a.example"),
        ("did:web:a.example", "https://a.example", "did:web:a.example"),
        ("did:web:a.example%3A80", "https://a.example:80", "did:web:a.example%3A80"),
        ("did:web:localhost%3A9", "http://localhost:9", "did:web:localhost%3A9"),
    ],
)
def test_an_appview_is_named_by_its_url_or_its_did(given, url, did):
    client = Atmosphere(appview=given)
    assert (client.appview_url, client.appview_did) == (url, did)


@pytest.mark.parametrize(
    "given",
    ["", "a.example", "did:plc:abc", "ftp://a.example", "https://u:p@a.example"],
)
def test_invalid_appviews_are_refused(given):
    with pytest.raises(ValueError, match="Invalid appview"):
        Atmosphere(appview=given)


def test_without_an_appview_its_methods_are_refused(fake_pds):
    client = Atmosphere(fake_pds.url)
    assert not client.has_appview
    assert client.appview_url is client.appview_did is None
    for call in (
        lambda: client.xrpc_query(LIST),
        lambda: client.xrpc_procedure(LIST),
        lambda: client.search_datasets("vec"),
        lambda: client.search_lenses(),
        lambda: client.get_entries([URI]),
        lambda: client.get_entry_stats(URI),
        lambda: client.describe_service(),
    ):
        with pytest.raises(AppViewRequiredError, match="requires an AppView") as caught:
            call()
        assert caught.value.operation.startswith("science.alt.dataset.")
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert fake_pds.count() == 0


def test_queries_are_sent_to_the_appview_without_a_token(client, appview, fake_pds):
    fake_pds.forget()
    answer = client.xrpc_query(LIST, {"limit": 10, "full": True, "none": None})
    assert answer["params"] == [["limit", "10"], ["full", "true"]]
    (call,) = appview.calls
    assert call.method == "GET"
    assert "authorization" not in call.headers
    assert fake_pds.count() == 0


def test_procedures_are_sent_through_the_sessions_server(client, appview, fake_pds):
    fake_pds.forget()
    fake_pds.hook = lambda call: Reply({"read": fake_pds.read_body(call, 999).decode()})
    assert client.xrpc_procedure(PUBLISH, {"a": 1}) == {"read": '{"a":1}'}
    (call,) = fake_pds.calls
    assert call.headers["atproto-proxy"] == f"{client.appview_did}#atdata_appview"
    assert call.headers["authorization"].startswith("Bearer ")
    assert appview.count() == 0


def test_an_expired_token_of_a_procedure_is_refreshed(client, fake_pds):
    fake_pds.expire()

    def answer(call):
        if call.nsid == PUBLISH:
            fake_pds.authorize(call)
            return Reply({"uri": URI})
        return None

    fake_pds.hook = answer
    assert client.xrpc_procedure(PUBLISH) == {"uri": URI}
    assert fake_pds.count("com.atproto.server.refreshSession") == 1


def test_a_procedure_needs_a_session(appview):
    client = Atmosphere(appview=appview.url)
    with pytest.raises(SessionError, match="Not authenticated"):
        client.xrpc_procedure(PUBLISH)


def test_searches_have_the_parameters_of_the_method(client):
    found = client.search_datasets(
        "vec", tags=["a", "b"], schema_ref=URI, repo="did:plc:abc", limit=1000
    )
    assert found == [
        {
            "method": "searchDatasets",
            "params": [
                ["q", "vec"],
                ["limit", "100"],
                ["tags", "a"],
                ["tags", "b"],
                ["schemaRef", URI],
                ["repo", "did:plc:abc"],
            ],
        }
    ]
    (lens,) = client.search_lenses(source_schema=URI)
    assert lens["params"] == [["sourceSchema", URI], ["limit", "25"]]
    (entry,) = client.get_entries([URI, URI])
    assert entry["params"] == [["uris", URI], ["uris", URI]]
    with pytest.raises(ValueError, match="at most 25"):
        client.get_entries([URI] * 26)
    stats = client.get_entry_stats(URI, "day")
    assert stats["params"] == [["uri", URI], ["period", "day"]]
    assert client.describe_service()["method"] == "describeService"


@pytest.mark.parametrize("found", [None, "x", 7, [1], ["x"], {"a": 1}])
def test_a_search_whose_answer_is_not_a_list_is_an_error(client, appview, found):
    appview.hook = say({"entries": found})
    with pytest.raises(AppViewUnavailableError, match="not a list of objects"):
        client.search_datasets("vec")


@pytest.mark.parametrize("name", ANSWERS)
def test_an_appview_that_fails_is_named(client, appview, name):
    if name == "an empty object":
        return  # the method may answer so
    appview.hook = ANSWERS[name]
    with pytest.raises((AppViewUnavailableError, XrpcError)) as caught:
        client.xrpc_query(LIST)
    if isinstance(caught.value, XrpcError):
        assert 400 <= caught.value.status < 500
    assert appview.url in str(caught.value)


def test_a_missing_appview_is_unavailable(fake_pds, appview):
    client = Atmosphere(fake_pds.url, appview=appview.url, timeout=0.3)
    url = appview.url
    appview.__exit__()
    with pytest.raises(AppViewUnavailableError, match="is unavailable") as caught:
        client.xrpc_query(LIST)
    assert isinstance(caught.value, AppViewError)
    assert (caught.value.url, caught.value.reason != "") == (url, True)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_a_refusal_of_an_appview_is_its_own_error(client, appview):
    appview.hook = say({"error": "InvalidRequest", "message": "no such period"}, 400)
    with pytest.raises(XrpcError, match="no such period"):
        client.get_entry_stats(URI, "never")


@pytest.mark.parametrize("nsid", ["", "a", "../x", "a.b/c", "a.b.c?x", "a.b.c d"])
def test_invalid_methods_are_not_sent(client, appview, nsid):
    with pytest.raises(ValueError, match="not the name of a method"):
        client.xrpc_query(nsid)
    assert appview.count() == 0
