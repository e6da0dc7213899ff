"""Public names, stubs, and the imports that the package avoids."""

import importlib
import importlib.util
import inspect
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastshard
from support import paths
from support.marks import not_sanitized

ROOT = Path(fastshard.__file__).parent


# Adapters to libraries that are not here.
MISSING = {
    f"fastshard.adapters.{name}"
    for name, libraries in {"torch": ["torch"], "ray": ["ray", "pyarrow"]}.items()
    if not all(map(importlib.util.find_spec, libraries))
}


def module_of(path):
    parts = ("fastshard", *path.relative_to(TREE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREE = paths.TREE / "fastshard"  # the sources, not what was installed
SOURCES = [p for p in TREE.rglob("*") if p.suffix in (".py", ".pyx", ".pxd", ".pyi")]
in_a_source_tree = pytest.mark.skipif(not SOURCES, reason="no source tree")


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_loads_nothing_heavy():
    heavy = (
        "numpy",
        "tqdm",
        "asyncio",
        "torch",
        "argparse",
        "tarfile",
        "sqlite3",
        "concurrent.futures",
        "dataclasses",
        "PIL",
        "msgpack",
        "zipfile",
    )
    code = f"import sys, fastshard; print([m for m in {heavy} if m in sys.modules])"
    assert python(code).strip() == "[]"


def test_datasets_of_tars_need_no_sqlite(shard_path):
    code = (
        "import sys, fastshard\n"
        f"fastshard.open({str(shard_path.parent)!r}).close()\n"
        "print('sqlite3' in sys.modules)"
    )
    assert python(code).strip() == "False"


def test_views_need_no_numpy(shard_path):
    code = (
        "import sys, fastshard\n"
        f"shard = fastshard.open_shard({str(shard_path)!r})\n"
        "shard[0], shard.samples['000']['json'], list(shard.names)\n"
        "print('numpy' in sys.modules, shard.offsets[0], 'numpy' in sys.modules)"
    )
    assert python(code).split() == ["False", "512", "True"]


def test_every_public_name_exists_and_is_documented():
    assert fastshard.__all__ == sorted(fastshard.__all__)
    for name in fastshard.__all__:
        thing = getattr(fastshard, name)
        assert inspect.getdoc(thing), name
        if not isinstance(thing, type):
            continue
        for attribute, member in vars(thing).items():
            if not attribute.startswith("_") and callable(member):
                assert inspect.getdoc(getattr(thing, attribute)), f"{name}.{attribute}"


def test_every_module_says_what_it_is():
    for info in pkgutil.walk_packages([str(ROOT)], "fastshard."):
        if info.name != "fastshard.__main__" and info.name not in MISSING:
            assert importlib.import_module(info.name).__doc__, info.name


def test_adapters_are_imported_by_name_only():
    names = ("torch", "ray", "pyarrow", "jax", "grain")
    shown = f"print([m for m in {names} if m in sys.modules])"
    assert python(f"import sys, fastshard.adapters; {shown}").strip() == "[]"


def test_versions_agree():
    from importlib.metadata import version

    assert version("fastshard") == fastshard.__version__


def test_errors_derive_from_the_base():
    from fastshard import errors

    for name in errors.__all__:
        base = UserWarning if name.endswith("Warning") else fastshard.FastshardError
        assert issubclass(getattr(errors, name), base)
        assert getattr(fastshard, name) is getattr(errors, name)


def checks(folder, *command):
    """Run a type checker that finds the package, installed or in its sources."""
    pytest.importorskip("mypy")
    where = {} if "site-packages" in str(ROOT) else {"MYPYPATH": str(ROOT.parent)}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | where,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@not_sanitized
def test_the_stubs_are_true(tmp_path):
    allowed = tmp_path / "allowed.txt"
    text = (paths.TESTS / "stubtest_allowlist.txt").read_text()
    allowed.write_text(text + "".join(f"{name}\n" for name in MISSING))
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nignore_missing_imports = True\n")
    options = ("--ignore-unused-allowlist", "--allowlist", allowed)
    options += ("--mypy-config-file", config)
    checks(tmp_path, "mypy.stubtest", "fastshard", *options)


@not_sanitized
def test_users_code_type_checks(tmp_path):
    code = tmp_path / "user.py"
    code.write_text(
        "import fastshard\n"
        "with fastshard.open_shard('x.tar', mode='private') as shard:\n"
        "    view: memoryview = shard[0]\n"
        "    views: list[memoryview] = shard[1:]\n"
        "    data: bytes = shard.read('a')\n"
        "    sample: fastshard.Sample = shard.samples['k']\n"
        "    text: str = sample.text('txt')\n"
        "    name: str = shard.names[-1]\n"
        "    keys: list[str] = sample.keys()\n"
        "    total = int(shard.sizes.sum()) + len(shard.samples)\n"
        "    where: str = shard.save_index('x.json')\n"
        "with fastshard.open('d/**', decoders={'jpg': bytes}) as ds:\n"
        "    some: fastshard.Dataset = ds[::2].select_fields('jpg', missing='skip')\n"
        "    for item in some.decode('jpg').iter(on_error='skip'): item['jpg']\n"
        "    count: int = ds.stats()['members'] + len(ds.members)\n"
        "with fastshard.ShardWriter('t-{}.tar', max_size='1GiB') as writer:\n"
        "    writer.write({'__key__': 'a', 'txt': 'b'})\n"
        "    offsets = ds.read_into([1], bytearray(9), fields='jpg').tolist()\n"
        "    arrays: dict[str, object] = ds.columns([1], {'x': 'f4'}, ragged='list')\n"
        "    for item in ds.iter(order=[1, 2], window=8): item['jpg']\n"
        "    part = ds.shuffle(7, epoch=1, block=4)\n"
        "    part = part.split_by_rank(0, 2, drop_last='pad')\n"
        "    it = part.iter({}, on_error='skip')\n"
        "    state: dict[str, object] = part.state_dict(1)\n"
        "    for batch in part.resume(state).batches(4, ragged='pad'): batch['jpg']\n"
        "    mixed = fastshard.mix([ds, part], weights=[1, 2], seed=3)\n"
        "    pair = fastshard.zip_by_key(ds, part)[0]\n"
        "    fastshard.collate([ds[0]], ragged='list')\n"
        "made: list[str] = fastshard.build_index('d', format='fsi', part='0/2')\n"
    )
    checks(tmp_path, "mypy", "--strict", "--no-incremental", code)
