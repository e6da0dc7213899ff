"""Errors for unknown arguments and values suggest the nearest valid one."""

import difflib
import importlib
import inspect
import pickle
import re

import numpy as np
import pytest

import fastshard
import fastshard.streaming
from fastshard._util.hints import (
    CALLS,
    METHODS,
    OPTIONS,
    SYNONYMS,
    explain_option,
)
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from support.servers.http import Server
from support.tars import write_tar


@pytest.fixture
def tar(tmp_path):
    return write_tar(tmp_path / "t.tar", {"a.txt": b"1", "b.txt": b"2"})


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("call", [fastshard.open, fastshard.open_shard])
@pytest.mark.parametrize(
    ("name", "near"),
    [("idnex", "index"), ("prefech", "prefetch"), ("time_out", "timeout")],
)
def test_an_unknown_argument(tar, call, name, near, remote):
    source = "http://127.0.0.1:9/t.tar" if remote else tar
    with pytest.raises(TypeError, match=rf"no argument {name}=; did you mean {near}="):
        call(source, **{name: 1})


def test_max_mem_is_max_memory(tar):
    with pytest.raises(TypeError, match=r"open\(\) .* did you mean max_memory="):
        fastshard.open(tar, max_mem="1GiB")
    with pytest.raises(TypeError, match=r"quux=: it takes .*index=, .*mode=, .*token="):
        fastshard.open(tar, quux=1)


def test_each_argument_is_listed_once(tmp_path):
    with pytest.raises(TypeError, match="quux=: it takes append=") as caught:
        fastshard.ShardWriter(tmp_path / "{}.tar", quux=1)
    listed = re.findall(r"(\w+)=", str(caught.value).partition("takes")[2])
    assert listed == sorted(set(listed)) != []


def test_remote_options_are_accepted(tar):
    with Server({"/t.tar": tar.read_bytes()}) as server:
        url = server.at("/t.tar")
        with fastshard.open(url, timeout=3, connections=2) as ds:
            assert len(ds) == 2
        fastshard.open_shard(url, timeout=3).close()


@pytest.mark.parametrize("call", [fastshard.open, fastshard.open_shard])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index": "atuo"}, "'atuo'; did you mean auto"),
        ({"index": "rebuilt"}, "did you mean rebuild"),
        (
            {"index": "frobnicate"},
            'must be "auto", "none", "rebuild" or an existing path',
        ),
        ({"mode": "nmap"}, '"private" or "pread", got \'nmap\'; did you mean mmap'),
        ({"key": "frist"}, "did you mean first"),
    ],
)
def test_an_invalid_value(tar, call, options, message):
    with pytest.raises(ValueError, match=message):
        call(tar, **options)


def test_an_index_that_is_a_path_is_looked_for(tar, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for index in ("atuo.fsi", "./atuo", tmp_path / "atuo"):
        with pytest.raises((OSError, ValueError)) as caught:
            fastshard.open_shard(tar, index=index)
        assert "did you mean" not in str(caught.value)
    fastshard.build_index(tar, out=tmp_path / "word")
    with fastshard.open(tar, index="word") as ds:
        assert len(ds) == 2


@pytest.mark.parametrize(
    ("make", "name", "near"),
    [
        (fastshard.ShardWriter, "max_cuont", "max_count"),
        (ShardedDatasetReader, "max_mem", "max_memory"),
        (ShardedDatasetWriter, "allow_pickel", "allow_pickle"),
    ],
)
def test_unknown_arguments_of_classes(tmp_path, make, name, near):
    with pytest.raises(TypeError, match=rf"^{make.__name__}\(\) .*mean {near}="):
        make(tmp_path / "x", **{name: 1})
    assert near in inspect.signature(make).parameters
    assert "kwargs" not in inspect.signature(make).parameters


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shuffle", r"shuffle is a method, fastshard.open\(...\).shuffle\(seed"),
        ("suffle", "shuffle is a method"),
        ("shuffle_seed", "shuffle is a method"),
        ("batch_size", r"\.batches\(batch_size\), or torch's DataLoader"),
        ("num_workers", "belongs to torch's DataLoader"),
        ("transform", r"\.map\(fn\)"),
        ("split", r'as the source, "DIR/train-\*.tar"'),
        ("world_size", r"\.split_by_rank\(rank, world_size\)"),
        ("fields", r"\.select_fields\("),
        ("on_error", r"\.iter\("),
        ("max_count", "belongs to fastshard.ShardWriter"),
        ("hashes", "belongs to fastshard.build_index"),
        ("streaming", "remote ones by ranges"),
        ("cache_size", "did you mean cache_limit="),
        ("use_auth_token", "did you mean token="),
    ],
)
def test_an_option_of_another_call_says_where_it_belongs(tar, name, words):
    for call in (fastshard.open, fastshard.open_shard):
        pattern = rf"^{call.__name__}\(\) has no argument {name}=[:;] .*{words}"
        with pytest.raises(TypeError, match=pattern):
            call(tar, **{name: 1})


@pytest.mark.parametrize(
    ("call", "name", "words"),
    [
        ("open", "resampled", r": an epoch has each sample once, .*shuffle\("),
        ("open", "repeat", ": an epoch has each sample once"),
        ("open", "epoch_size", r": the length of an epoch is .*\[:n\]"),
        ("open", "replication", r"split_by_rank\(rank // replication"),
        ("open", "predownload", ": what is read ahead is bounded by max_memory="),
        ("open", "num_canonical_nodes", r"split_by_rank\("),
        ("open", "sampling_method", r"fastshard\.mix\("),
        ("open", "batching_method", r"fastshard\.mix\("),
        ("open", "streams", r"fastshard\.mix\("),
        ("open", "local", "; did you mean cache_dir="),
        ("open", "download_retry", "; did you mean attempts="),
        ("open", "lru_size", "; did you mean max_mapped="),
        ("open", "num_proc", ": workers of torch's DataLoader share"),
        ("open", "multiprocessing_context", ": it belongs to torch's DataLoader"),
        ("open", "to_tuple", r": of a dataset, decode\("),
        ("open", "empty_check", ": it takes "),  # no similar one
        ("batches", "partial", ": drop_last=True leaves out a last batch"),
        ("batches", "collate_fn", "; did you mean collate="),
        ("batches", "handler", "; did you mean on_error="),
        ("batches", "cache_size", ": it belongs to fastshard.open, as cache_limit="),
        ("batches", "mode", ": it belongs to fastshard.open$"),
        ("loader", "predownload", "; did you mean ahead="),
        ("loader", "partial", ": drop_last=True leaves out a last batch"),
        ("loader", "generator", "shuffle is a method"),
        ("convert", "num_proc", "; did you mean workers="),
        ("convert", "size_limit", "; did you mean max_size="),
        ("convert", "format", "; did you mean to="),
        ("convert", "exist_ok", ": it belongs to fastshard.ShardWriter"),
        ("mix", "probabilities", "; did you mean weights="),
        ("mix", "stopping_strategy", "; did you mean stop="),
        ("ShardWriter", "exist_ok", "; did you mean overwrite="),
    ],
)
def test_options_of_other_libraries(tar, tmp_path, call, name, words):
    with fastshard.open(tar) as ds:
        calls = {
            "open": lambda **given: fastshard.open(tar, **given),
            "batches": lambda **given: ds.batches(2, **given),
            "loader": lambda **given: ds.loader(2, **given),
            "convert": lambda **given: fastshard.convert(
                tar, tmp_path / "out", to="mds", **given
            ),
            "mix": lambda **given: fastshard.mix([ds], **given),
            "ShardWriter": lambda **given: fastshard.ShardWriter(
                tmp_path / "{}.tar", **given
            ),
        }
        with pytest.raises(TypeError, match=rf"^{call}\(\) .* {name}=.*{words}"):
            calls[call](**{name: None})


def parameters_of(function):
    return set(inspect.signature(function).parameters) - {"self", "args", "kw"}


@pytest.mark.parametrize("call", [fastshard.open, fastshard.Dataset.batches])
def test_every_parameter_of_other_loaders_is_explained(tar, call):
    other = pytest.importorskip("torch.utils.data").DataLoader.__init__
    names = parameters_of(other) - {"dataset"}
    taken = set(inspect.signature(call).parameters) | set(
        fastshard.RemoteOptions.__optional_keys__
    )
    for name in names - taken:
        assert explain_option(name, taken), name


def test_every_parameter_of_a_webdataset_is_explained(tar):
    webdataset = pytest.importorskip("webdataset")
    valid = [*inspect.signature(fastshard.open).parameters, "cache_limit", "cache_dir"]
    names = parameters_of(webdataset.WebDataset.__init__) - set(valid)
    unknown = {name for name in names if not explain_option(name, valid)}
    assert unknown <= {"empty_check", "verbose"}


def test_hints_name_existing_calls():
    known = set()
    for call in (
        *(fastshard.open, fastshard.convert, fastshard.mix, fastshard.ShardWriter),
        *(fastshard.Dataset.batches, fastshard.Dataset.loader, fastshard.build_index),
    ):
        known |= set(inspect.signature(call).parameters)
    known |= fastshard.RemoteOptions.__optional_keys__
    for names in SYNONYMS.values():
        assert set(names) <= known
    for text in OPTIONS.values():
        for method in re.findall(r"fastshard\.open\(\.\.\.\)\.([a-z_]+)\(", text):
            assert hasattr(fastshard.Dataset, method), text


def test_the_format_of_a_conversion_may_be_the_third_argument(tar, tmp_path):
    assert fastshard.convert(tar, tmp_path / "out", "mds").format == "mds"
    with pytest.raises(ValueError, match=r"to must be .*'msd'; did you mean mds"):
        fastshard.convert(tar, tmp_path / "other", "msd")
    with pytest.raises(TypeError, match="'to'"):
        fastshard.convert(tar, tmp_path / "other")


def test_an_option_of_datasets_is_refused_for_a_shard(tar):
    for name in ("max_memory", "max_mapped", "decoders", "keep_cache"):
        with pytest.raises(TypeError, match=f"{name}=: it belongs to fastshard.open$"):
            fastshard.open_shard(tar, **{name: None})


def test_all_explained_options_are_of_no_call_that_takes_them():
    taken = {
        fastshard.open: "decoders max_mapped max_memory keep_cache",
        fastshard.ShardWriter: "max_count max_size maxcount maxsize overwrite append "
        "start",
        fastshard.build_index: "hashes threads again part",
        fastshard.Dataset.shuffle: "seed epoch block",
        fastshard.Dataset.split_by_rank: "rank world_size",
        fastshard.Dataset.batches: "batch_size drop_last collate ragged state on_error",
        fastshard.Dataset.iter: "window state on_error",
    }
    for call, names in taken.items():
        assert set(names.split()) <= set(inspect.signature(call).parameters), call


def test_an_option_that_a_format_lacks_is_named_first(tmp_path):
    with ShardedDatasetWriter(tmp_path / "c") as writer:
        writer.add_fields(["x"])
        writer.add_sample({"x": np.zeros(1)})
    with pytest.raises(
        ValueError, match=r"^key= is an option of tar shards; a columna"
    ):
        fastshard.open(tmp_path / "c", key="last")


@pytest.mark.parametrize("name", ["buffer_size", "bufsize", "size", "initial"])
def test_a_shuffle_has_no_buffer(tar, name):
    with fastshard.open(tar) as ds:
        with pytest.raises(TypeError, match=rf"{name}=: the order is a permutation of"):
            ds.shuffle(**{name: 1000})
        with pytest.raises(TypeError, match="did you mean seed="):
            ds.shuffle(sed=1)
        with pytest.raises(TypeError, match=r"a seed .* must be an int, got NoneType"):
            ds.shuffle(None)
        assert list(ds.shuffle(1000).keys()) == list(ds.shuffle(seed=1000).keys())
        assert list(ds.shuffle().keys()) == list(ds.shuffle(0, 0).keys())
    assert "size" not in inspect.signature(fastshard.Dataset.shuffle).parameters


def test_the_size_of_a_batch_has_two_names_and_a_position(tar):
    with fastshard.open(tar) as ds:
        for batches in (ds.batches(1), ds.batches(batch_size=1), ds.batches(n=1)):
            assert [batch["__key__"] for batch in batches] == [["a"], ["b"]]
        for both in (lambda: ds.batches(1, n=1), lambda: ds.batches(batch_size=1, n=1)):
            with pytest.raises(TypeError, match=r"batch_size= or n=.*both"):
                both()
        with pytest.raises(TypeError, match="did you mean batch_size="):
            ds.batches(batchsize=1)
        with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
            ds.batches(0)


def test_writers_take_the_names_of_webdataset(tmp_path):
    options = {"maxcount": 2, "maxsize": 3e9}
    with fastshard.ShardWriter(tmp_path / "a-{}.tar", **options) as writer:
        for i in range(3):
            writer.write({"__key__": f"{i}", "txt": "x" * 600})
    assert len(writer.shards) == 2
    with fastshard.ShardWriter(tmp_path / "b-{}.tar", maxsize="4KB") as writer:
        for i in range(3):
            writer.write({"__key__": f"{i}", "txt": "x" * 600})
    assert len(writer.shards) == 3
    for name in ("size", "count"):
        with pytest.raises(TypeError, match=rf"takes max_{name}= or max{name}=.*both"):
            fastshard.ShardWriter(
                tmp_path / "c-{}.tar", **{f"max_{name}": 1, f"max{name}": 1}
            )
    with pytest.raises(ValueError, match="max_count must be positive, got 0"):
        fastshard.ShardWriter(tmp_path / "c-{}.tar", maxcount=0)
    with pytest.raises(TypeError):
        fastshard.ShardWriter(tmp_path / "c-{}.tar", maxcount=1.5)
    with pytest.raises(TypeError, match="start_shard=; did you mean start="):
        fastshard.ShardWriter(tmp_path / "c-{}.tar", start_shard=1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("batch", r"; use batches\(batch_size\)"),
        ("to_tuple", r"; use decode\("),
        ("select", "; use ds"),
        ("num_rows", r"; use len\(ds\)"),
        ("with_length", r"; use len\(ds\)"),
        ("split_by_worker", "; use torch's DataLoader, whose workers share"),
        ("quux", "$"),
    ],
)
def test_attributes_of_other_datasets_name_ours(tar, name, words):
    with fastshard.open(tar) as ds:
        for each in (ds, fastshard.mix([ds])):
            kind = type(each).__name__
            pattern = f"^{kind!r} object has no attribute {name!r}.*{words}"
            with pytest.raises(AttributeError, match=pattern) as caught:
                getattr(each, name)
            assert (caught.value.name, caught.value.obj) == (name, each)
            assert not hasattr(each, name)
            assert name not in dir(each)
            assert name not in dir(type(each))


def test_methods_that_hints_name_exist():
    for name in METHODS:
        assert not hasattr(fastshard.Dataset, name), f"{name} exists: it needs no hint"
    for name, call in CALLS.items():
        assert name not in fastshard.__all__
        module, _, attribute = call.rpartition(".")
        if module.startswith("fastshard"):
            assert hasattr(importlib.import_module(module), attribute), call
    for text in METHODS.values():
        for method in re.findall(r"^([a-z_]+)\(", text):
            assert method == "len" or hasattr(fastshard.Dataset, method), text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("WebDataset", "; use fastshard.open$"),
        ("load_dataset", "; use fastshard.open$"),
        ("TarWriter", "; use fastshard.ShardWriter$"),
        ("StreamingDataset", "; use fastshard.open$"),
        ("Stream", "; use fastshard.mix$"),
        ("StreamingDataLoader", "; use torch.utils.data.DataLoader$"),
        ("quux", "$"),
    ],
)
@pytest.mark.parametrize("module", [fastshard, fastshard.streaming])
def test_names_of_other_packages_name_ours(module, name, words):
    pattern = f"{module.__name__!r} has no .*{name}.*{words}"
    with pytest.raises(AttributeError, match=pattern):
        getattr(module, name)
    assert not hasattr(module, name)


@pytest.mark.parametrize("source", ["data/", ["a.tar"], None])
def test_a_dataset_is_made_by_open(source):
    with pytest.raises(TypeError, match=r"made by fastshard\.open\(source\), got"):
        fastshard.Dataset(source)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("TXT", "txt"),
        (".txt", "txt"),
        ("caption.txt", "txt"),
        ("text", "txt"),
        ("xtt", "txt"),
        ("jpg", None),
        ("seg", None),
    ],
)
def test_a_misspelt_field_suggests_the_nearest(tar, name, near):
    with fastshard.open(tar) as ds:
        for sample in (ds[0], pickle.loads(pickle.dumps(ds[0]))):
            with pytest.raises(fastshard.FieldNotFoundError) as caught:
                sample[name]
            assert caught.value.near == (() if near is None else (near,))
            assert ("did you mean 'txt'?" in str(caught.value)) == (near is not None)
            again = pickle.loads(pickle.dumps(caught.value))
            assert str(again) == str(caught.value)
        with pytest.raises(KeyError, match=r"the key is sample\.key"):
            ds[0]["__key__"]
        with pytest.raises(KeyError, match="decode takes names of fields"):
            ds.decode("pil")[0]


def test_calls_as_of_other_datasets_say_how_ours_are(tar):
    with fastshard.open(tar) as ds:
        for method in (ds.select_fields, ds.decode):
            pattern = rf'{method.__name__}\("jpg", "cls"\), got a list'
            with pytest.raises(TypeError, match=pattern):
                method(["txt"])
        with pytest.raises(TypeError, match=r"fn\(key, sizes, info\).*too many pos"):
            ds.filter(lambda sample: True)
        assert len(ds.filter(lambda *args: True)) == 2
        assert len(ds.filter(lambda key, sizes, info, more=1: key == "a")) == 1
        with pytest.raises(TypeError, match="num_proc=: the function is called on acc"):
            ds.map(len, num_proc=3)
        with pytest.raises(TypeError, match=r"batch_size=: batches are a method"):
            ds.iter(batch_size=3)


def test_a_misspelt_member_suggests_the_nearest_when_it_is_shown(tar):
    shard = fastshard.open_shard(tar)
    with fastshard.open(tar) as ds:
        for missing in (shard, ds.members):
            if missing is not shard:
                len(ds)
            with pytest.raises(fastshard.MemberNotFoundError) as caught:
                missing["a.tx"]
            assert "did you mean 'a.txt'" in str(caught.value)
    with pytest.raises(fastshard.MemberNotFoundError) as caught:
        shard["a.tx"]
    shard.close()
    assert str(caught.value)  # a closed shard has no names to suggest


def test_errors_that_are_caught_look_for_no_names(tar, monkeypatch):
    def refuse(*args):
        raise AssertionError("names are compared")

    monkeypatch.setattr(difflib, "get_close_matches", refuse)
    with fastshard.open(tar) as ds, fastshard.open_shard(tar) as shard:
        for get in (
            lambda: ds[0]["text"],
            lambda: ds["c"],
            lambda: shard["a.tx"],
            lambda: shard.samples["c"],
            lambda: ds.members["a.tx"],
        ):
            with pytest.raises(KeyError):
                get()
        assert "text" not in ds[0]
        assert "c" not in ds


def test_misspelt_names_of_a_columnar_dataset(tmp_path):
    with ShardedDatasetWriter(tmp_path) as writer:
        writer.add_fields(["image", "label"])
        for i in range(40):
            sample = {"image": np.zeros(2), "label": np.zeros(1)}
            writer.add_sample(sample, sample_id=f"sample_{i:04}")
    with ShardedDatasetReader(tmp_path) as reader:
        ds = fastshard.open(tmp_path)
        for missing in (
            lambda: reader.get_sample("sample_007"),
            lambda: reader.get_many(["sample_007"]),
            lambda: ds["sample_007"],
        ):
            with pytest.raises(KeyError, match=r"did you mean 'sample_0007'"):
                missing()
        for missing in (
            lambda: reader.get_sample("sample_0007", fields=["lable"]),
            lambda: list(reader.scan(fields=["lable"])),
        ):
            with pytest.raises(KeyError, match=r"did you mean 'label'\?"):
                missing()


def test_a_missing_column(tar, tmp_path):
    fastshard.build_index(tar, hashes=True)
    with fastshard.open(tar) as ds:
        for fn in (
            lambda key, sizes, info: info["w"] > 1,
            lambda key, sizes, info: info["txt"]["w"] > 1,
        ):
            with pytest.raises(KeyError) as caught:
                ds.filter(fn)
            error = caught.value
            assert isinstance(error, fastshard.InfoNotFoundError)
            message = str(error)
            assert message.startswith("no column 'w' in the index of ")
            assert "'sha256'" in message
            assert "fastshard index --hash" in message
            sample, position = error.__notes__
            assert sample == f"sample 'a', position 0 of {tar}"
            assert position == "position 0 of the dataset"
        with pytest.raises(KeyError, match=r"info\['txt'\]\['sha256'\]"):
            ds.filter(lambda key, sizes, info: info["sha256"])
        with pytest.raises(fastshard.InfoNotFoundError, match=r"'w'.*'sha256'"):
            ds.info("w")
        infos = ds[0].infos()
        assert "txt" in infos
        assert "w" not in infos
        assert infos.get("w") is None
        assert infos["txt"].get("w", 5) == 5
        assert dict(infos["txt"]).keys() == {"sha256"}


def test_an_index_without_columns(tar):
    missing = pytest.raises(
        KeyError, match="which has no columns; it has the columns of"
    )
    with fastshard.open(tar, index="none") as ds, missing:
        ds.filter(lambda key, sizes, info: info["txt"]["w"])


def test_a_missing_metadata_key(tmp_path):
    with ShardedDatasetWriter(tmp_path / "c") as writer:
        writer.add_fields(["x"])
        writer.add_sample({"x": np.zeros(1)}, sample_id="s", metadata={"h": 1})
    with fastshard.open(tmp_path / "c") as ds:
        assert len(ds.filter(lambda key, sizes, info: info["metadata"]["h"])) == 1
        for fn in (
            lambda key, sizes, info: info["w"],
            lambda key, sizes, info: info["metadata"]["w"],
        ):
            with pytest.raises(KeyError, match=r"'w' in the metadata .*'h'.*add_sampl"):
                ds.filter(fn)
        with pytest.raises(KeyError, match=r"info\['metadata'\]\['h'\]"):
            ds.filter(lambda key, sizes, info: info["h"])


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("pil", "png"),
        ("image", "png"),
        ("label", "cls"),
        ("text", "txt"),
        ("audio", ""),
    ],
)
def test_names_that_other_libraries_use_suggest_a_field(tmp_path, asked, near):
    path = tmp_path / "s.tar"
    with fastshard.ShardWriter(path) as writer:
        writer.write({"__key__": "a", "png": b"", "cls": 1, "txt": "x"})
    sample = fastshard.open(path)[0]
    with pytest.raises(fastshard.FieldNotFoundError) as caught:
        sample.decode(asked)
    assert ("did you mean" in str(caught.value)) == bool(near)
    assert f"did you mean {near!r}?" in str(caught.value) or not near
