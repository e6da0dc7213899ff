"""The network of lenses: registration, chains, types that end."""

import copy
import dataclasses
import gc
import itertools
import os
import pickle
import threading
import warnings
import weakref

import pytest

import fastshard
from fastshard import typed
from support.inside.typed import lock_of


def make_type(name, *fields):
    return typed.packable(
        type(name, (), {"__annotations__": dict.fromkeys(fields, int)})
    )


def link(source, view):
    names = [field.name for field in dataclasses.fields(view)]

    def get(s):
        return view(**{name: getattr(s, name) for name in names})

    get.__annotations__ = {"s": source, "return": view}
    get.__name__ = f"{source.__name__}_{view.__name__}".lower()
    return typed.lens(get)


@pytest.fixture
def network():
    return typed.LensNetwork()


@pytest.fixture
def types():
    """Five types, in each of which is the field of the others."""
    return [make_type(name, "x") for name in "ABCDE"]


def test_there_is_one_network(network):
    assert typed.LensNetwork() is network
    assert pickle.loads(pickle.dumps(network)) is network
    assert copy.deepcopy(network) is network


def test_a_registered_lens_is_found_until_it_is_removed(network, types):
    a, b = types[:2]
    before = len(network)
    lens = link(a, b)
    assert network.transform(a, b) is lens
    assert lens in network
    assert lens in list(network)
    assert len(network) == before + 1
    network.unregister(lens)
    assert lens not in network
    assert len(network) == before
    with pytest.raises(fastshard.LensNotFoundError, match="not registered"):
        network.unregister(lens)
    network.register(lens)
    assert network.transform(a, b) is lens


def test_without_a_lens_the_error_lists_lenses(network, types):
    a, b, c, d, _ = types
    with pytest.raises(ValueError, match="No lens transforms A to B: A has no lenses"):
        network.transform(a, b)
    link(a, c)
    link(a, d)
    with pytest.raises(fastshard.LensNotFoundError) as caught:
        network.transform(a, b)
    error = caught.value
    assert (error.source, error.view, error.known) == ("A", "B", ("C", "D"))
    assert "A has lenses to C by a_c, D by a_d" in str(error)
    assert "@lens def f(sample: A) -> B" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_second_lens_replaces_the_first_with_a_warning(network, types):
    a, b = types[:2]
    first = link(a, b)
    with pytest.warns(UserWarning, match=r"a_b: A -> B\) replaces Lens\(a_b") as caught:
        second = link(a, b)
    assert caught[0].filename == __file__
    assert network.transform(a, b) is second
    assert first not in network
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network.register(second)  # the same again
    with pytest.warns(UserWarning, match="replaces") as caught:
        network.register(first)
    assert caught[0].filename == __file__


def test_the_only_shortest_chain_is_taken(network, types):
    a, b, c, d, e = types
    link(a, b), link(b, c), link(c, d)
    link(d, a)  # a circle
    lens = network.transform(a, d)
    assert lens(a(x=3)) == d(x=3)
    assert (lens.source_type, lens.view_type) == (a, d)
    assert lens.__name__ == "a_b | b_c | c_d"
    link(a, c)
    assert network.transform(a, d).__name__ == "a_c | c_d"
    direct = link(a, d)
    assert network.transform(a, d) is direct
    with pytest.raises(fastshard.LensNotFoundError, match="No lens transforms A to E"):
        network.transform(a, e)


def test_several_shortest_chains_are_an_error_that_lists_them(network, types):
    a, b, c, d, e = types
    link(a, b), link(a, c), link(b, d), link(c, d), link(d, e)
    with pytest.raises(fastshard.LensNotFoundError) as caught:
        network.transform(a, d)
    assert sorted(caught.value.known) == ["A -> B -> D", "A -> C -> D"]
    assert "several chains of lenses lead from A to D" in str(caught.value)
    with pytest.raises(fastshard.LensNotFoundError) as caught:
        network.transform(a, e)
    assert sorted(caught.value.known) == ["A -> B -> D -> E", "A -> C -> D -> E"]
    network.unregister(network.transform(c, d))
    assert network.transform(a, e).__name__ == "a_b | b_d | d_e"


def test_a_mesh_of_lenses_is_searched_in_short_time(network):
    layers = [[make_type(f"L{i}_{j}", "x") for j in range(6)] for i in range(8)]
    for lower, upper in itertools.pairwise(layers):
        for source in lower:
            for view in upper:
                link(source, view)
    with pytest.raises(fastshard.LensNotFoundError) as caught:
        network.transform(layers[0][0], layers[-1][0])
    assert len(caught.value.known) == 5


def test_a_type_is_its_own_view(network, types):
    sample = types[0](x=1)
    assert network.transform(types[0], types[0])(sample) is sample


def test_untyped_samples_have_a_lens_to_each_packable_class(network):
    pair = make_type("Pair", "x", "y")
    lens = network.transform(typed.DictSample, pair)
    assert lens(typed.DictSample(x=1, y=2)) == pair(x=1, y=2)
    assert lens(typed.DictSample.from_bytes(pair(x=1, y=2).packed)) == pair(x=1, y=2)
    assert lens(typed.DictSample(x=1, y=2, z=3)) == pair(x=1, y=2)  # as `from_bytes`
    assert (lens.source_type, lens.view_type) == (typed.DictSample, pair)
    assert "Pair" in repr(lens)
    with pytest.raises(TypeError, match="no putter"):
        lens.put(pair(x=1, y=2), typed.DictSample(x=1, y=2))
    with pytest.raises(fastshard.LensNotFoundError, match="DictSample to int"):
        network.transform(typed.DictSample, int)


def test_a_lens_from_untyped_samples_may_be_ones_own(network, types):
    a = types[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lens = link(typed.DictSample, a)
    assert network.transform(typed.DictSample, a) is lens
    network.unregister(lens)
    assert network.transform(typed.DictSample, a)(typed.DictSample(x=1)) == a(x=1)


def test_no_chain_leads_through_untyped_samples(network, types):
    a, b = types[:2]

    @typed.lens
    def loosen(s: a) -> typed.DictSample:
        return typed.DictSample(x=s.x)

    with pytest.raises(fastshard.LensNotFoundError):
        network.transform(a, b)


@pytest.mark.parametrize(
    "order", ["source first", "view first", "new source", "new view"]
)
def test_types_that_end_take_their_lenses_with_them(network, order):
    kept = make_type("Kept", "x")
    gone = []
    for _ in range(5):
        if order == "view first":
            view, source = make_type("V", "x"), make_type("S", "x")
        else:
            source, view = make_type("S", "x"), make_type("V", "x")
        source = kept if order == "new view" else source
        view = kept if order == "new source" else view
        lens = link(source, view)
        gone += [weakref.ref(lens)]
        gone += [weakref.ref(each) for each in (source, view) if each is not kept]
        del source, view, lens
    gc.collect()
    assert [each() for each in gone] == [None] * len(gone)
    assert "S" not in {lens.source_type.__name__ for lens in network}


def test_a_lens_lives_as_long_as_its_types(network, types):
    a, b = types[:2]
    alive = weakref.ref(link(a, b))
    gc.collect()
    assert alive() is network.transform(a, b)


def test_types_that_take_no_attributes(network):
    def get(s: int) -> str:
        return str(s)

    lens = typed.lens(get)
    alive = weakref.ref(lens)
    del lens
    gc.collect()
    assert network.transform(int, str)(7) == "7"
    network.unregister(alive())
    gc.collect()
    assert alive() is None


def test_a_subclass_has_lenses_of_its_own(network, types):
    a, b = types[:2]
    part = typed.packable(type("Part", (a,), {"__annotations__": {"y": int}}))
    link(a, b)
    with pytest.raises(fastshard.LensNotFoundError, match="Part to B"):
        network.transform(part, b)
    link(a, part)
    assert network.transform(a, part).__name__ == "a_part"


def test_threads_register_and_look_up(network):
    failures = []

    def work(k):
        try:
            for i in range(30):
                a, b = make_type(f"T{k}_{i}", "x"), make_type(f"U{k}_{i}", "x")
                lens = link(a, b)
                assert network.transform(a, b) is lens
                list(network)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_looks_up_while_a_thread_of_its_parent_held_the_lock(network, types):
    link(types[0], types[1])
    with lock_of(network):
        done = []
        thread = threading.Thread(target=lambda: done.append(_fork_and_look(types)))
        thread.start()
        thread.join()
    assert done == [0]


def _fork_and_look(types):
    child = os.fork()
    if child == 0:
        try:
            typed.LensNetwork().transform(types[0], types[1])
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
