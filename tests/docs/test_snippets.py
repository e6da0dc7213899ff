"""The code in README.md and docs/ runs as it is printed.

A page of ``docs/`` is one program. Its blocks run in order, in a process of its own
and in an empty directory: ``python`` blocks in one namespace, ``pycon`` blocks with the
output that stands there, ``bash`` blocks with ``fastshard`` and ``python`` on
the PATH, ``console`` blocks (``$ command``) with their output; ``...`` stands for any
text in outputs. Each block of README.md is a program of its own. ``text``, ``json``,
``toml``, ``yaml``, ``html``, ``sql`` and ``csv`` are shown only; another fence is an
error.

``<!-- needs: torch -->`` above a block names libraries: where one is not installed, the
page is skipped. Hosts that a page names are on this machine: see `support.docs.hosts`.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from support.docs import run_page
from support.docs.hosts import serve
from support.docs.pages import Page, UnknownFenceError, find_pages, read_page
from support.marks import needs, not_sanitized
from support.paths import README, TREE
from support.servers.forks import fork

HAS_DOCS = (TREE / "docs").is_dir()
PAGES = find_pages() if HAS_DOCS else []
SECONDS = 300
PROJECT = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
EXTRAS = {  # for users
    name: requirements
    for name, requirements in PROJECT["optional-dependencies"].items()
    if name not in ("adapters", "bench", "dev", "docs", "rivals", "test")
}

pytestmark = [
    not_sanitized,
    pytest.mark.skipif(not HAS_DOCS, reason="no source tree"),
]


def run(
    page: Page, folder: Path, hidden: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a page in a new directory below `folder`, without the modules `hidden`."""
    work, private = folder / "work", folder / "private"
    work.mkdir()
    private.mkdir()
    task = private / "page.json"
    contents = {"path": str(page.path), "steps": page.steps, "hidden": hidden}
    task.write_text(json.dumps(contents))
    text = "\n".join(str(step["code"]) for step in page.steps)
    if any(f"{scheme}://" in text for scheme in ("https", "gs", "az")):
        needs("openssl")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with serve(text, work, private) as env:
        env = {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "88", **env}
        if "torch" in page.needs and not hidden:
            return fork(private, run_page.__file__, task, cwd=work, env=env)
        return subprocess.run(
            [sys.executable, run_page.__file__, task],
            cwd=work,
            env=env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_page_runs_as_it_is_printed(page, tmp_path):
    for library in page.needs:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    hidden = modules_not_installed(page) if page.path == README else []
    done = run(page, tmp_path, hidden)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def modules_not_installed(page: Page) -> list[str]:
    """Return the optional modules that the install line above a block leaves out.

    README.md has this line in the text between the block and the one before.
    """
    lines = page.path.read_text().splitlines()[: page.blocks[0].line - 2]
    start = max((i for i, line in enumerate(lines) if line == "```"), default=0)
    named = re.findall(r"pip install -e '\.\[([\w,]+)\]'", "\n".join(lines[start:]))
    brought = packages_of(",".join(named).split(","))
    optional = packages_of(EXTRAS) - brought
    return [
        module
        for module, packages in packages_distributions().items()
        if {each.lower() for each in packages} & optional
    ]


def packages_of(extras: Iterable[str]) -> set[str]:
    """Return the names of the packages that extras of pyproject.toml bring."""
    requirements = [each for extra in extras for each in EXTRAS.get(extra, ())]
    names = [re.match(r"[\w.-]+", each)[0].lower() for each in requirements]
    return set(names) - {"fastshard"}


def page_of(folder, text):
    path = folder / "page.md"
    path.write_text(text)
    return read_page(path, folder)


def fenced(language, code):
    return f"```{language}\n{code}\n```\n"


WRONG = {
    "python": ("python", "1 / 0", "ZeroDivisionError"),
    "assert": ("python", "\n\nassert 1 == 2", "line 9"),
    "exit": ("python", "import sys; sys.exit('no')", "the block fails"),
    "output": ("pycon", ">>> 1 + 1\n3", "Expected"),
    "no example": ("pycon", "1 + 1", "no >>> line"),
    "bash": ("bash", "false\ntrue", "exit status 1"),
    "unset": ("bash", "echo $NOTHING_IS_THIS | cat", "exit status 1"),
    "console": ("console", "$ echo one\ntwo", "expected"),
    "no prompt": ("console", "echo one", "does not begin"),
    "network": (
        "python",
        "import socket; socket.create_connection(('192.0.2.1', 80), 9)",
        "not this machine",
    ),
}


@pytest.mark.parametrize(("language", "code", "said"), WRONG.values(), ids=WRONG)
def test_a_block_that_fails_fails_its_page(tmp_path, language, code, said):
    text = fenced("python", "x = 1\n") + "\n" + fenced(language, code)
    done = run(page_of(tmp_path, text), tmp_path)
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize("language", ["", "pyton", "sh", "Python"])
def test_an_unknown_fence_is_an_error(tmp_path, language):
    with pytest.raises(UnknownFenceError, match=r"page\.md:3"):
        page_of(tmp_path, "\n\n" + fenced(language, "x"))


def test_a_fence_that_stays_open_is_an_error(tmp_path):
    with pytest.raises(UnknownFenceError, match="not closed"):
        page_of(tmp_path, "```python\nx = 1\n")


def test_blocks_of_a_page_are_one_program(tmp_path):
    text = (
        fenced("python", "x = 1")
        + fenced("pycon", ">>> x += 1\n>>> x\n2")
        + fenced("bash", "echo some > file")
        + fenced("text", "x = 0")
        + '=== "A tab"\n\n    ```python title="t.py"\n'
        + "    if x == 2:\n        x = 3\n    ```\n"
        + fenced("console", "$ cat file\nsome\n$ python -c 'print(*range(9))'\n0 ... 8")
        + fenced("python", "assert x == 3 and open('file').read() == 'some\\n'")
    )
    done = run(page_of(tmp_path, text), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_comment_names_the_libraries_of_the_block_below(tmp_path):
    text = "<!-- needs: torch, jax -->\n\n" + fenced("python", "1") + "text\n"
    text += fenced("python", "2") + "<!-- needs: ray -->\ntext\n" + fenced("bash", "3")
    page = page_of(tmp_path, text)
    assert page.needs == ["jax", "torch"]


def test_code_keeps_its_lines_in_the_module_that_is_type_checked(tmp_path):
    text = "# Page\n\n" + fenced("python", "x = 1") + "\n"
    text += fenced(
        "pycon",
        ">>> y = 2\n>>> 1 / 0\nTraceback (most recent call last):\n"
        "ZeroDivisionError: division by zero\n>>> y",
    )
    lines = page_of(tmp_path, text).program.splitlines()
    assert lines == ["", "", "", "x = 1", *[""] * 3, "y = 2", *[""] * 3, "y"]


MAKE = """
import fastshard

with fastshard.ShardWriter("data/t-{:04d}.tar", max_count=2) as writer:
    for i in range(4):
        writer.write({"__key__": f"{i}", "txt": f"text {i}"})
"""


@pytest.mark.parametrize(
    "source",
    [
        "https://some.host/data/t-{0000..0001}.tar",
        "http://some.host/data/",
        "hf://datasets/someone/some-set/data",
        "hf://datasets/someone/some-set@v2/data",
        "s3://bucket/data/t-*.tar",
        "s3://bucket/data",
        "gs://bucket/data/**",
        "az://container/data",
    ],
)
def test_hosts_that_a_page_names_hold_the_files_that_it_made(tmp_path, source):
    if "hf:" in source:
        pytest.importorskip("huggingface_hub")
    if source.startswith(("s3:", "gs:", "az:")):
        pytest.importorskip("obstore")
    text = (
        fenced("python", f"import os\nos.makedirs('data')\n{MAKE}")
        + fenced("bash", "fastshard index data/")
        + fenced("pycon", f">>> ds = fastshard.open({source!r})\n>>> len(ds)\n4")
        + fenced("pycon", ">>> ds[3].text('txt')\n'text 3'")
    )
    done = run(page_of(tmp_path, text), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


PREPARE = """
import glob
import fastshard

with fastshard.streaming.MDSWriter(columns={"x": "int"}, out="mds") as rows:
    for i in range(4):
        rows.write({"x": i})
for pattern in ("top-{:04d}.tar", "data/t-{:04d}.tar"):
    with fastshard.ShardWriter(pattern, max_count=2) as writer:
        for i in range(4):
            writer.write({"__key__": f"{i}", "txt": f"text {i}", "cls": i})
fastshard.build_index("top-*.tar", format="json")
fastshard.build_index("top-*.tar", format="wids")
urls, root = sorted(glob.glob("data/*.tar")), "series"
with fastshard.columnar.ShardedDatasetWriter(root) as columns:
    columns.add_field("x")
    for i in range(4):
        columns.add_sample({"x": [i]})


def size(found: object) -> int:
    if hasattr(found, "__len__"):
        return len(found)
    return found.total_files - 16  # it has all tars: 8, 8 and 4 members
"""


def test_calls_in_the_readme_s_table_open_datasets(tmp_path):
    pytest.importorskip("huggingface_hub")
    rows = [line.split("|") for line in (TREE / "README.md").read_text().splitlines()]
    cells = [row[3] for row in rows if len(row) == 5]
    calls = [call for cell in cells for call in re.findall(r"`(fastshard\..*?)`", cell)]
    assert len(calls) >= 7
    text = fenced("python", PREPARE)
    for call in calls:
        text += fenced("python", f"found = {call}\nprint({call!r})")
        text += fenced("python", "assert size(found) == 4")
    done = run(page_of(tmp_path, text), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


RESOLVE = """
import functools, os, sys, fastshard
for line in sys.stdin:
    if os.fork() == 0:  # without the modules that other names imported
        for name in line.split():
            functools.reduce(getattr, name.split(".")[1:], fastshard)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(line)
"""
NOT_PYTHON = ("github", "bash", "fish")  # a host, files
ADAPTERS = {f"fastshard.adapters.{name}": name for name in ("jax", "ray", "torch")}


def test_import_fastshard_alone_reaches_every_name_that_pages_print():
    text = "".join(page.read_text() for page in (TREE / "docs").rglob("*.md"))
    text += (TREE / "README.md").read_text()
    imports = r"^::: .*|(from|import) fastshard[.\w]+|^fastshard[.\w]+Error:"
    text = re.sub(imports, "", text, flags=re.MULTILINE)
    groups = {}
    for name in sorted(set(re.findall(r"\bfastshard(?:\.[A-Za-z_]\w*)+", text))):
        library = ADAPTERS.get(".".join(name.split(".")[:3]))
        is_missing = library and importlib.util.find_spec(library) is None
        if not is_missing and name.split(".")[1] not in NOT_PYTHON:
            groups.setdefault(name.rpartition(".")[0], []).append(name)
    assert len(groups) >= 5
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RESOLVE],
        input="".join(f"{' '.join(names)}\n" for names in groups.values()),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
