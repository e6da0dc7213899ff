"""The Python code of README.md and docs/ under mypy and pyright.

A page is one module, on whose lines each block stands where it stands in the page: the
line of an error is the line in the Markdown file. The right column of a migration page
follows its blocks. All modules are checked in one run.
Libraries without types are not followed, nor are the bodies of our own functions, whose
errors are ignored here.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fastshard
from support.docs.pages import find_pages
from support.docs.tables import right_program
from support.marks import not_sanitized
from support.paths import TREE
from support.pyright import pyright_problem

HAS_DOCS = (TREE / "docs").is_dir()
PACKAGES = Path(fastshard.__file__).parents[1]
# Large, or without types: they return Any.
UNTYPED = (
    "bagz datasets grain jax lmdb pyarrow ray streaming torch torchdata torchvision "
    "webdataset webshart wids"
)
OF_UNTYPED = re.compile(rf'attribute of module "({UNTYPED.replace(" ", "|")})"')
MYPY_CONFIG = """
[mypy]
strict = true
disallow_subclassing_any = false
disallow_untyped_calls = false
disallow_untyped_decorators = false
[mypy-{}]
ignore_missing_imports = true
follow_imports = skip
[mypy-fastshard.*]
ignore_errors = true
""".format(",".join(f"{name},{name}.*" for name in UNTYPED.split()))

pytestmark = [
    not_sanitized,
    pytest.mark.skipif(not HAS_DOCS, reason="no source tree"),
]


@pytest.fixture
def modules(tmp_path):
    """One module a page, in ``tmp_path / "code"``; their names by the page's."""
    (tmp_path / "code").mkdir()
    names = {}
    for page in find_pages():
        is_migration = page.path.parent.name == "migration"
        program = right_program(page) if is_migration else page.program
        if program.strip():
            module = re.sub(r"\W", "_", page.name) + ".py"
            (tmp_path / "code" / module).write_text(program)
            names[module] = page.name
    return names


def run(*command, **env):
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        capture_output=True,
        text=True,
        env=os.environ | env,
    )


def mypy_errors(folder, modules):
    pytest.importorskip("mypy")
    (folder / "mypy.ini").write_text(MYPY_CONFIG)
    done = run(
        *("mypy", "--config-file", folder / "mypy.ini", "--output=json"),
        *("--cache-dir", folder.parents[1] / "mypy-docs"),
        *(folder / name for name in modules),
        MYPYPATH="" if PACKAGES.name == "site-packages" else str(PACKAGES),
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = map(json.loads, done.stdout.splitlines())
    return [
        (Path(error["file"]).name, error["line"], error["message"])
        for error in found
        if error["severity"] == "error"
    ]


def pyright_errors(folder, modules):
    if problem := pyright_problem():
        pytest.skip(problem)
    paths = [] if PACKAGES.name == "site-packages" else [str(PACKAGES)]
    config = {"include": list(modules), "extraPaths": paths}
    if not importlib.util.find_spec("torch"):
        config["reportMissingImports"] = False
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    done = run(
        *("pyright", "--project", folder, "--pythonpath", sys.executable),
        "--outputjson",
        PYRIGHT_PYTHON_IGNORE_WARNINGS="1",
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [
        (
            Path(error["file"]).name,
            error["range"]["start"]["line"] + 1,
            error["message"],
        )
        for error in json.loads(done.stdout)["generalDiagnostics"]
        if error["severity"] == "error" and not OF_UNTYPED.search(error["message"])
    ]


@pytest.mark.parametrize("checker", [mypy_errors, pyright_errors])
def test_the_code_type_checks(tmp_path, modules, checker):
    folder = tmp_path / "code"
    (folder / "wrong.py").write_text("import fastshard\nfastshard.open(1, 2)\n")
    found = checker(folder, [*modules, "wrong.py"])
    assert any(name == "wrong.py" and line == 2 for name, line, _ in found)
    assert [
        f"{modules[name]}:{line}: {message}"
        for name, line, message in found
        if name in modules
    ] == []
