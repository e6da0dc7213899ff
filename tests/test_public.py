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
from fastshard._util.hints import METHODS
from support import paths
from support.marks import not_sanitized

ROOT = Path(fastshard.__file__).parent


# Adapters to libraries that are not here.
NEEDS = {"jax": ["jax"], "torch": ["torch"], "ray": ["ray", "pyarrow"]}
MISSING = {
    f"fastshard.adapters.{name}"
    for name, libraries in NEEDS.items()
    if not all(map(importlib.util.find_spec, libraries))
}


def module_of(path):
    parts = ("fastshard", *path.relative_to(TREE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREE = paths.TREE / "fastshard"  # the sources, not the installed files
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


@pytest.mark.parametrize(
    "names", ["packable, PackableSample, lens, Dataset, load_dataset", "URLSource"]
)
def test_importing_typed_names_loads_nothing_heavy(names):
    heavy = (
        "numpy",
        "msgspec",
        "pandas",
        "pyarrow",
        "tqdm",
        "asyncio",
        "torch",
        "argparse",
        "sqlite3",
    )
    code = (
        f"import sys; from fastshard.typed import {names}; "
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    assert python(code).strip() == "[]"


NETWORK = ("urllib3", "http.client", "ssl", "fastshard.atmosphere.client")


def test_typed_samples_load_nothing_of_indexes():
    heavy = (*NETWORK, "sqlite3", "redis", "psycopg", "fastshard.catalog.index")
    code = (
        "import sys, fastshard.typed; from fastshard.typed import Dataset, "
        f"load_dataset, write_samples; print([m for m in {heavy} if m in sys.modules])"
    )
    assert python(code).strip() == "[]"


def test_a_local_index_loads_no_client_of_a_server(tmp_path):
    heavy = (*NETWORK, "redis", "psycopg", "obstore")
    code = (
        "import sys; from fastshard.typed import Index, LocalDiskStore\n"
        f"store = LocalDiskStore({str(tmp_path)!r})\n"
        f"index = Index(path={str(tmp_path / 'index.db')!r}, data_store=store)\n"
        "index.list_datasets(), index.search('a')\n"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    assert python(code).strip() == "[]"


def test_datasets_of_tars_need_no_sqlite(shard_path):
    code = (
        "import sys, fastshard\n"
        f"fastshard.open({str(shard_path.parent)!r}).close()\n"
        "print('sqlite3' in sys.modules)"
    )
    assert python(code).strip() == "False"


def test_iteration_needs_no_loader(shard_path):
    code = (
        "import sys, fastshard\n"
        f"list(fastshard.open({str(shard_path.parent)!r}).shuffle(1))\n"
        "parts = 'loader', 'images', 'tokens', 'threads.pipeline'\n"
        "print([p for p in parts if f'fastshard.loader.{p}' in sys.modules])"
    )
    assert python(code).strip() == "[]"


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


def test_every_module_has_a_docstring():
    for info in pkgutil.walk_packages([str(ROOT)], "fastshard."):
        generated = info.name == "fastshard._core._cyutility"
        if not generated and info.name not in {"fastshard.__main__", *MISSING}:
            assert importlib.import_module(info.name).__doc__, info.name


def test_modules_are_attributes_of_the_package():
    names = ("adapters", "columnar", "decoders", "errors", "index", "typed")
    for name in names:
        home = (
            f"fastshard.{name}" if name != "decoders" else "fastshard.formats.decoders"
        )
        assert (
            python(f"import fastshard; print(fastshard.{name}.__name__)") == f"{home}\n"
        )


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


# Not read by a type checker: nothing of ours derives from a class of theirs.
UNUSED = (
    *("ray.*", "jax.*", "pyarrow.*", "pandas.*"),
    *("torch._dynamo.*", "torch._inductor.*", "torch.ao.*", "torch.distributed.*"),
    *("torch.fx.*", "torch.nn.*", "torch.onnx.*"),
)


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
    hints = {
        rf"fastshard\.dataset\.sequence\.base\.BaseDataset\.{name}" for name in METHODS
    }
    allowed.write_text(text + "".join(f"{name}\n" for name in MISSING | hints))
    config = tmp_path / "mypy.ini"
    skipped = f"[mypy-{','.join(UNUSED)}]\nfollow_imports = skip\n"
    # mypy reads no bodies of functions where it ignores errors; .ci/run checks them.
    skipped += "[mypy-fastshard.*]\nignore_errors = True\n"
    config.write_text(f"[mypy]\nignore_missing_imports = True\n{skipped}")
    options = ("--ignore-unused-allowlist", "--allowlist", allowed)
    options += ("--mypy-config-file", config)
    checks(tmp_path, "mypy.stubtest", "fastshard", *options)
