"""The training loops of docs/training.md, stopped and started again."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import fastshard
from support.marks import not_sanitized
from support.paths import TREE

PAGE = TREE / "docs" / "training.md"
SAMPLES = 300

pytestmark = not_sanitized


def code_below(heading: str) -> str:
    """The first Python block below a heading."""
    text = PAGE.read_text().partition(f"\n## {heading}\n")[2]
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def train(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    rng = np.random.default_rng(0)
    with fastshard.ShardWriter(folder / "t-{}.tar", max_count=70) as writer:
        for i in range(SAMPLES):
            vector = rng.random(512, dtype=np.float32)
            writer.write({"__key__": f"{i:04d}", "npy": vector, "cls": i % 10})
    return tmp_path


# Notes the keys, or the number, of the samples that the loop has seen.
SPY = """
import json as json_module
dump = json_module.dump
states = []
def spy(state, file):
    states.append(state)
    dump(state, file)
    file.close()
json_module.dump = spy
"""
STOP = """
def spy(state, file, spy=spy):
    spy(state, file)
    if len(states) == 3:
        raise SystemExit(3)
json_module.dump = spy
"""


def run(folder, code):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("heading", "library", "why"),
    [
        ("PyTorch", "torch", "torch has no wheel for this Python"),
        ("JAX", "jax", "no jax for this Python"),
        ("Ray", "ray", "no ray for this Python"),
    ],
)
def test_a_training_loop_goes_on_where_it_was_stopped(train, heading, library, why):
    pytest.importorskip(library, reason=why)
    if not PAGE.exists():
        pytest.skip("no source tree")
    code = code_below(heading)
    stopped = run(train, SPY + STOP + code)
    assert stopped.returncode == 3, stopped.stderr
    state = json.loads((train / "state.json").read_text())
    assert (state["epoch"], state["position"]) == (0, 192)
    report = "\nprint(json_module.dumps([[s['epoch'], s['position']] for s in states]))"
    done = run(train, SPY + code + report)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    last = 300 if heading != "JAX" else 256  # it drops the last batch
    rest = [[0, 256], [0, 300]] if heading != "JAX" else [[0, 256]]
    assert seen[: len(rest)] == rest
    assert [position for epoch, position in seen if epoch == 1][-1] == last
    assert len(seen) == len(rest) + (5 if heading != "JAX" else 4)
