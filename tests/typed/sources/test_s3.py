"""Sources in buckets with credentials of their own, against a server of S3."""

import copy
import pickle
import traceback

import pytest

import fastshard
from fastshard import typed
from support.marks import not_sanitized
from support.servers.s3 import SECRET, Bucket, serve_s3
from support.tars import write_tar

pytest.importorskip("obstore")
pytest.importorskip("moto.server")

pytestmark = not_sanitized  # tests no C code


@typed.packable
class Number:
    x: int


@pytest.fixture(scope="module")
def endpoint():
    with serve_s3() as url:
        yield url


@pytest.fixture
def bucket(endpoint):
    return Bucket(endpoint)


@pytest.fixture
def no_environment(monkeypatch):
    """No credentials in the environment, and no server that would give some."""
    import os

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_it_names_its_shards():
    source = typed.S3Source(bucket="bucket", keys=("a.tar", "b/c.tar"))
    assert isinstance(source, typed.DataSource)
    assert source.list_shards() == ["s3://bucket/a.tar", "s3://bucket/b/c.tar"]
    assert source.keys == ["a.tar", "b/c.tar"]


def test_urls_of_one_bucket():
    source = typed.S3Source.from_urls(
        ["s3://bucket/path/a.tar", "s3://bucket/path/b.tar"],
        endpoint="https://r2.example.com",
        access_key="AKID",
        secret_key=SECRET,
        region="auto",
    )
    assert (source.bucket, source.keys) == ("bucket", ["path/a.tar", "path/b.tar"])
    assert source.endpoint == "https://r2.example.com"
    assert (source.access_key, source.secret_key) == ("AKID", SECRET)
    assert source.region == "auto"


@pytest.mark.parametrize(
    ("urls", "reason"),
    [
        ([], "cannot be empty"),
        (["https://example.com/a.tar"], "Not an S3 URL"),
        (["s3://bucket"], "Not an S3 URL"),
        (["s3:///a.tar"], "Not an S3 URL"),
        (["s3://a/1.tar", "s3://b/2.tar"], "same bucket"),
    ],
)
def test_other_urls_are_an_error(urls, reason):
    with pytest.raises(ValueError, match=reason):
        typed.S3Source.from_urls(urls)


def test_keys_are_a_sequence_and_credentials_two():
    with pytest.raises(TypeError, match="one str"):
        typed.S3Source("bucket", "a.tar")
    with pytest.raises(ValueError, match="together"):
        typed.S3Source("bucket", ["a.tar"], access_key="AKID")


def test_credentials_of_a_dict():
    known = {
        "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT": "https://r2.example.com",
        "AWS_SESSION_TOKEN": "a token",
    }
    source = typed.S3Source.from_credentials(known, "bucket", ["a.tar"])
    assert source == typed.S3Source(
        "bucket",
        ["a.tar"],
        "https://r2.example.com",
        "AKID",
        SECRET,
        session_token="a token",
    )
    assert source.options["store"]["session_token"] == "a token"


def test_credentials_of_a_file(tmp_path):
    path = tmp_path / ".env"
    path.write_text(
        "\ufeff# a comment = 1\n\nexport AWS_ACCESS_KEY_ID=AKID # mine\n"
        f'AWS_SECRET_ACCESS_KEY = "{SECRET} #=" # the secret\nnonsense\n'
        "AWS_ENDPOINT_URL='https://r2.example.com'\nAWS_REGION=auto\nAWS_OTHER=\n"
        "AWS_SESSION_TOKEN=''\n",
        encoding="utf-8",
    )
    for given in (path, str(path)):
        source = typed.S3Source.from_credentials(given, "bucket", ["a.tar"])
        assert (source.access_key, source.secret_key) == ("AKID", f"{SECRET} #=")
        assert (source.endpoint, source.region) == ("https://r2.example.com", "auto")
        assert source.session_token is None
    with pytest.raises(FileNotFoundError):
        typed.S3Source.from_credentials(tmp_path / "none", "bucket", ["a.tar"])


def test_credentials_stand_nowhere(bucket):
    source = typed.S3Source(bucket.name, ["none.tar"], **bucket.options)
    texts = [repr(source), str(source), str(pickle.dumps(source, 0))]
    for call in (lambda: source.open_shard(f"s3://{bucket.name}/none.tar"),):
        with pytest.raises(fastshard.RemoteNotFoundError) as caught:
            call()
        texts += traceback.format_exception(caught.value)
    with pytest.raises(KeyError) as caught:
        source.open_shard(f"s3://{SECRET}@other/none.tar")
    texts.append(str(caught.value))
    assert not [text for text in texts if SECRET in text or "someone" in text]


def test_a_pickled_source_uses_the_environment(bucket, tmp_path, monkeypatch):
    path = write_tar(tmp_path / "a.tar", {"0.txt": b"text"})
    bucket.put("a.tar", path)
    source = typed.S3Source(bucket.name, ["a.tar"], **bucket.options)
    again = pickle.loads(pickle.dumps(source))
    assert (again.access_key, again.secret_key, again.session_token) == (None,) * 3
    assert (again.bucket, again.keys, again.endpoint) == (
        source.bucket,
        source.keys,
        source.endpoint,
    )
    bucket.environment(monkeypatch)
    with again.open_shard(f"s3://{bucket.name}/a.tar") as file:
        assert file.read() == path.read_bytes()
    assert copy.copy(again) == again


def test_shards_are_seekable_files(bucket, tmp_path, no_environment):
    path = write_tar(tmp_path / "a.tar", {"0.txt": b"text" * 100})
    bucket.put("train/a.tar", path)
    bucket.put("train/b {1,2}[x]*.tar", path)
    source = typed.S3Source(
        bucket.name, ["train/a.tar", "train/b {1,2}[x]*.tar"], **bucket.options
    )
    names = []
    for name, file in source.shards:
        names.append(name)
        with file:
            file.seek(512)
            assert file.read(8) == b"texttext"
    assert names == source.list_shards()


def test_members_of_shards_are_read_by_ranges(bucket, tmp_path, no_environment):
    for i in range(2):
        path = write_tar(tmp_path / f"{i}.tar", {f"{i}.txt": b"text %d" % i})
        bucket.put(f"{i}{{a,b}}.tar", path)
    source = typed.S3Source(bucket.name, ["0{a,b}.tar", "1{a,b}.tar"], **bucket.options)
    ds = fastshard.open(source.location, **source.options)
    assert [bytes(sample["txt"]) for sample in ds] == [b"text 0", b"text 1"]


def test_credentials_stand_in_no_dataset(bucket, tmp_path, no_environment):
    path = tmp_path / "a.tar"
    typed.write_samples(typed.testing.make_samples(Number, n=5), path)
    bucket.put("a.tar", path)
    source = typed.S3Source(bucket.name, ["a.tar"], **bucket.options)
    ds = typed.Dataset(source, Number)
    assert [sample.x for sample in ds.ordered()] == [0, 1, 2, 3, 4]
    state = ds.shuffle(seed=1).state_dict(3)
    texts = [repr(ds), str(state), str(ds.describe()), ds.url]
    with pytest.raises(fastshard.FastshardError, match="is not pickled") as caught:
        pickle.dumps(ds)
    texts += traceback.format_exception(caught.value)
    missing = typed.S3Source(bucket.name, ["none.tar"], **bucket.options)
    with pytest.raises(FileNotFoundError) as caught:
        typed.Dataset(missing, Number).head(1)
    texts += traceback.format_exception(caught.value)
    assert not [text for text in texts if SECRET in text or "someone" in text]


def test_a_dataset_with_the_credentials_of_the_environment_pickles(
    bucket, tmp_path, monkeypatch
):
    path = tmp_path / "a.tar"
    typed.write_samples(typed.testing.make_samples(Number, n=5), path)
    bucket.put("a.tar", path)
    bucket.environment(monkeypatch)
    source = typed.S3Source(bucket.name, ["a.tar"], endpoint=bucket.endpoint)
    ds = pickle.loads(pickle.dumps(typed.Dataset(source, Number)))
    assert [sample.x for sample in ds.ordered()] == [0, 1, 2, 3, 4]
    assert ds.source == source
