"""Lenses: views, putters, composition, types from annotations, pickles, laws."""

import copy
import functools
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from support.processes import environment


@typed.packable
class Record:
    name: str
    score: float
    vector: NDArray


@typed.packable
class Scored:
    name: str
    score: float


@typed.packable
class Named:
    name: str


@typed.lens
def scored(record: Record) -> Scored:
    """Name and score."""
    return Scored(name=record.name, score=record.score)


@scored.putter
def put_scored(view: Scored, record: Record) -> Record:
    return Record(name=view.name, score=view.score, vector=record.vector)


def get_named(view: Scored) -> Named:
    return Named(name=view.name)


def put_named(view: Named, source: Scored) -> Scored:
    return Scored(name=view.name, score=source.score)


named = typed.Lens(get_named, put_named)


def record(name="a", score=0.5, vector=(1.0, 2.0)):
    return Record(name=name, score=score, vector=np.array(vector, "f4"))


def is_record(found, name, score, vector):
    np.testing.assert_array_equal(found.vector, np.array(vector, "f4"))
    return (found.name, found.score) == (name, score)


def test_a_lens_is_a_function_with_a_putter():
    sample = record()
    assert scored(sample) == scored.get(sample) == Scored(name="a", score=0.5)
    assert is_record(scored.put(Scored(name="b", score=2.0), sample), "b", 2.0, (1, 2))
    assert scored.source_type is Record
    assert scored.view_type is Scored
    assert scored.has_putter
    assert (scored.__name__, scored.__doc__) == ("scored", "Name and score.")
    assert repr(scored) == "Lens(scored: Record -> Scored)"


def test_the_decorator_of_a_putter_leaves_the_function():
    assert put_scored(Scored(name="b", score=1.0), record()).name == "b"


@pytest.mark.parametrize(
    ("make", "number"), [(lambda: None, 0), (lambda a, b: None, 2)], ids=["none", "two"]
)
@pytest.mark.parametrize("call", [typed.Lens, typed.lens])
def test_the_function_has_one_parameter(make, number, call):
    with pytest.raises(ValueError, match=f"exactly one parameter, got {number}"):
        call(make)


def test_a_put_without_a_putter_is_an_error():
    lens = typed.Lens(get_named)
    source = Scored(name="a", score=1.0)
    with pytest.raises(
        TypeError, match=r"get_named has no putter: .*@get_named.putter"
    ):
        lens.put(Named(name="b"), source)
    assert not lens.has_putter


def test_an_option_keeps_the_put_of_upstream():
    source = Scored(name="a", score=1.0)
    assert (
        typed.Lens(get_named, upstream_put=True).put(Named(name="b"), source) is source
    )
    both = typed.Lens(get_named, put_named, upstream_put=True)
    assert both.put(Named(name="b"), source) == Scored(name="b", score=1.0)


@pytest.mark.parametrize("whole", [scored | named, named @ scored], ids=["|", "@"])
def test_a_composed_lens_is_one_after_the_other(whole):
    sample = record()
    assert whole(sample) == whole.get(sample) == Named(name="a")
    assert is_record(whole.put(Named(name="b"), sample), "b", 0.5, (1, 2))
    assert (whole.source_type, whole.view_type) == (Record, Named)
    assert repr(whole) == "Lens(scored | get_named: Record -> Named)"


def test_composition_is_associative():
    upper = typed.Lens(
        lambda view: Named(name=view.name.upper()),
        lambda view, source: Named(name=view.name.lower()),
    )
    for whole in ((scored | named) | upper, scored | (named | upper)):
        assert whole(record()) == Named(name="A")
        assert is_record(whole.put(Named(name="ZED"), record()), "zed", 0.5, (1, 2))


def test_a_composed_lens_needs_the_putters_of_its_parts():
    whole = scored | typed.Lens(get_named)
    with pytest.raises(TypeError, match="get_named has no putter"):
        whole.put(Named(name="b"), record())


@pytest.mark.parametrize("other", [42, "lens", None, get_named])
def test_a_lens_composes_with_lenses_alone(other):
    with pytest.raises(TypeError):
        scored | other
    with pytest.raises(TypeError):
        scored @ other


def test_identity_changes_nothing():
    identity = typed.Lens.identity(Scored)
    a, b = Scored(name="a", score=1.0), Scored(name="b", score=2.0)
    assert identity(a) is a
    assert identity.put(b, a) is b
    assert (identity.source_type, identity.view_type) == (Scored, Scored)
    assert (scored | identity)(record()) == scored(record())
    assert (identity | named).put(Named(name="c"), a) == Scored(name="c", score=1.0)


def test_functions_without_annotations_make_lenses_without_types():
    lens = typed.Lens(lambda s: s * 2, lambda v, s: v // 2)
    assert (lens(4), lens.put(6, 4)) == (8, 3)
    assert repr(lens) == "Lens(<lambda>)"
    with pytest.raises(TypeError, match="no annotation of its parameter s"):
        lens.source_type  # noqa: B018
    with pytest.raises(TypeError, match="no annotation"):
        typed.lens(lambda s: s)
    assert repr(lens | lens) == "Lens(<lambda> | <lambda>)"


def test_an_annotation_must_be_a_class():
    def get(s: list[int]) -> Named: ...

    with pytest.raises(
        TypeError, match=r"of its parameter s must be a class, got list"
    ):
        typed.lens(get)


def test_other_callables_are_lenses_too():
    def get(prefix: str, view: Scored) -> Named:
        return Named(name=prefix + view.name)

    class Getter:
        def __call__(self, view: Scored) -> Named:
            return Named(name=view.name)

        def method(self, view: Scored) -> Named:
            return Named(name=view.name)

    for getter in (functools.partial(get, "a"), Getter(), Getter().method):
        lens = typed.Lens(getter)
        assert (lens.source_type, lens.view_type) == (Scored, Named)
        assert lens(Scored(name="a", score=1.0)).name in ("a", "aa")
        repr(lens)


POSTPONED = """
from __future__ import annotations
from fastshard import typed

@typed.lens
def early(source: Later) -> View:
    return View(x=source.x)

@typed.packable
class View:
    x: int

@typed.packable
class Later:
    x: int

assert typed.LensNetwork().transform(Later, View) is early
assert (early.source_type, early.view_type) == (Later, View)

def local():
    @typed.packable
    class Source:
        a: int
        b: int

    @typed.packable
    class Seen:
        a: int

    def inner():
        @typed.lens
        def view(source: Source) -> Seen:
            return Seen(a=source.a)

        return view

    Source, Seen  # variables of `inner` too
    view = inner()
    assert view.view_type is Seen, view.view_type
    assert typed.LensNetwork().transform(Source, Seen) is view

    @typed.lens
    def back(seen: Seen) -> Source:
        raise NotImplementedError

    assert (back.source_type, back.view_type) == (Seen, Source)

local()

@typed.lens
def never(source: Missing) -> View: ...

try:
    never.source_type
except TypeError as error:
    print(error)
print(repr(never), never in typed.LensNetwork())
"""


def test_annotations_may_be_postponed(tmp_path):
    (tmp_path / "postponed.py").write_text(POSTPONED)
    done = subprocess.run(
        [sys.executable, "-W", "error", "postponed.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "an annotation of the lens never cannot be resolved: "
        "name 'Missing' is not defined",
        "Lens(never) False",
    ]


def test_a_lens_of_a_module_pickles_by_name():
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(scored, protocol)) is scored
    assert copy.copy(scored) is scored
    assert copy.deepcopy(scored) is scored


def test_other_lenses_pickle_with_their_functions():
    sample = record()
    found = pickle.loads(pickle.dumps(named))
    assert found(Scored(name="a", score=1.0)) == Named(name="a")
    assert found.put(Named(name="b"), Scored(name="a", score=1.0)).name == "b"
    assert (found.source_type, found.view_type) == (Scored, Named)
    whole = pickle.loads(pickle.dumps(scored | named))
    assert is_record(whole.put(Named(name="b"), sample), "b", 0.5, (1, 2))
    assert pickle.loads(pickle.dumps(typed.Lens.identity(Named))).view_type is Named
    plain = pickle.loads(pickle.dumps(typed.Lens(get_named, upstream_put=True)))
    source = Scored(name="a", score=1.0)
    assert plain.put(Named(name="b"), source) is source


def test_a_lens_made_in_a_function_does_not_pickle():
    @typed.lens
    def local(view: Scored) -> Record: ...

    with pytest.raises((pickle.PicklingError, AttributeError), match="local"):
        pickle.dumps(local)
    typed.LensNetwork().unregister(local)


def test_laws_hold_for_a_putter_that_keeps_the_rest():
    nan = float("nan")
    samples = [record(), record("b", nan, [nan, 1.0]), record("c", 0.0, [])]
    assert scored.check_laws(samples) == []
    assert scored.check_laws(iter(samples)) == []
    assert scored.check_laws([]) == []


def test_broken_laws_say_where():
    def forget(view: Scored, source: Record) -> Record:
        return Record(name=view.name, score=1.0, vector=source.vector + 0)

    lens = typed.Lens(scored.get, forget)
    samples = [record("a", 1.0), record("b", 2.0)]
    assert lens.check_laws(samples) == [
        ("PutGet", 0, "score"),
        ("GetPut", 1, "score"),
    ]

    def spoil(view: Scored, source: Record) -> Record:
        return Record(name=view.name, score=view.score, vector=source.vector[:1])

    (failure,) = typed.Lens(scored.get, spoil).check_laws(samples[:1])
    assert failure == typed.LawFailure("GetPut", 0, "vector")
    assert failure.law == "GetPut"


def test_laws_of_samples_that_are_not_dataclasses():
    lens = typed.Lens(lambda s: s[0], lambda v, s: (v, *s[1:]))
    assert lens.check_laws([(1, 2), (3, 4)]) == []
    wrong = typed.Lens(lambda s: s[0], lambda v, s: (v, 0))
    assert wrong.check_laws([(1, 2)]) == [("GetPut", 0, None)]
    short = typed.Lens(lambda s: s, lambda v, s: typed.DictSample(a=1))
    assert short.check_laws([typed.DictSample(a=1, b=2)]) == [
        ("GetPut", 0, "b"),
        ("PutGet", 0, "b"),
    ]


def test_laws_need_a_putter():
    with pytest.raises(TypeError, match="no putter"):
        typed.Lens(get_named).check_laws([Scored(name="a", score=1.0)])


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (np.zeros(2, "f4"), np.zeros(2, "f8"), False),
        (np.zeros((1, 2)), np.zeros((2, 1)), False),
        (np.array([np.nan, 1]), np.array([np.nan, 1]), True),
        (np.array(["NaT"], "M8[s]"), np.array(["NaT"], "M8[s]"), True),
        (np.array([1, 2]), np.array([1, 3]), False),
        (np.array(["a"]), np.array(["a"]), True),
        ([np.zeros(2), {"a": np.ones(1)}], [np.zeros(2), {"a": np.ones(1)}], True),
        ([np.zeros(2), {"a": np.ones(1)}], [np.zeros(2), {"a": np.zeros(1)}], False),
        ({"a": 1}, {"b": 1}, False),
        ([1], [1, 2], False),
        (float("nan"), float("nan"), True),
        (1, 1.0, True),
        (1, "1", False),
        (b"a", "a", False),
        (None, 0, False),
        (Named(name="a"), Named(name="a"), True),
        ([Named(name="a")], [Named(name="b")], False),
    ],
)
def test_values_are_compared_by_value(a, b, same):
    lens = typed.Lens(lambda s: 0, lambda v, s: b)
    assert (lens.check_laws([a]) == []) == same


def test_the_registered_lens_of_the_module_runs_as_a_script(tmp_path):
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
        import pickle
        from fastshard import typed

        @typed.packable
        class A:
            x: int

        @typed.packable
        class B:
            x: int

        @typed.lens
        def view(a: A) -> B:
            return B(x=a.x)

        assert pickle.loads(pickle.dumps(view)) is view
        """)
    )
    command = [sys.executable, "script.py"]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True, timeout=60)
