"""The two columns of the migration pages run, and give the same values."""

import importlib.util
import json
import os

import pytest

from support.docs import run_sides
from support.docs.pages import read_blocks
from support.docs.tables import read_rows
from support.marks import not_sanitized
from support.paths import TREE
from support.servers.forks import fork

FOLDER = TREE / "docs" / "migration"

pytestmark = [
    not_sanitized,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="no source tree"),
]


def run(path, work, both=True):
    """Run a page's columns in `work`, or the right one alone.

    Its last line of output is the number of values that were compared.
    """
    blocks = [block for block in read_blocks(path) if block.language == "python"]
    setup = [(block.line, block.code) for block in blocks]
    task = work / "page.json"
    rows = [row._asdict() for row in read_rows(path)]
    page = {"path": str(path), "setup": setup, "rows": rows, "both": both}
    task.write_text(json.dumps(page))
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(work / "hf")}
    return fork(work, run_sides.__file__, task, cwd=work, env=os.environ | quiet)


@pytest.mark.parametrize(
    ("name", "library", "values"),
    [
        ("webdataset", "webdataset", 25),
        ("wids", "wids", 10),
        ("webshart", "webshart", 18),
        ("huggingface", "datasets", 23),
        ("mosaicml", "streaming", 16),
        ("atdata", "atdata", 23),
    ],
)
def test_both_columns_of_a_page_give_the_same_values(name, library, values, tmp_path):
    beside = {"atdata": ["msgspec"], "huggingface": ["datasets"]}  # in our column too
    for needed in ("torch", "PIL", *beside.get(name, ())):
        pytest.importorskip(needed)
    found = importlib.util.find_spec(library)
    both = found is not None and found.origin is not None  # no folder of tests
    done = run(FOLDER / f"{name}.md", tmp_path, both)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.splitlines()[-1]) >= values * both
    if not both:
        pytest.skip(f"without {library} the right column was run alone")


PAGE = """
```python
x = 1
```

| you write | you write now |
|---|---|
| `import os` | `import sys` |
| LEFT | RIGHT |
"""


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        ("`y = [x, 2]`", "`y = x`<br>`y = (x, 2)`", "1\n"),
        ("`seen = [1, 2]`", "`seen = [x + x, x]`", "1\n"),
        ("`y = {1: b'a'}`", "`y = {1: memoryview(b'a')}`", "1\n"),
        ("`y = os`", "nothing does that", "0\n"),
        ("`y = [1, 2]`", "`y = [2, 1]`", "y is"),
        ("`y = 1`", "`z = 1`", "no common name"),
        ("`y = object()`", "`y = 1`", "one side alone"),
        ("`y = sys`", "`y = sys`", "NameError"),
    ],
)
def test_sides_that_differ_are_found(left, right, said, tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE.replace("LEFT", left).replace("RIGHT", right))
    done = run(path, tmp_path)
    assert said in done.stdout + done.stderr
    assert (done.returncode == 0) == (said[0] in "01")
