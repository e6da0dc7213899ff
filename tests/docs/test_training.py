"""The training loops of docs/training.md, stopped and started again."""

import json

import pytest

from support.docs.pages import read_blocks
from support.marks import not_sanitized, slow
from support.paths import TREE
from support.servers.forks import fork

PAGE = TREE / "docs" / "training.md"
# The learned value of each loop, which is saved beside its state.
LEARNT = {"torch": "net[3].weight.detach()", "jax": "weights", "ray": "matrix"}

pytestmark = [
    not_sanitized,
    pytest.mark.skipif(not PAGE.exists(), reason="no source tree"),
]


def run(folder, code):
    """Run code in the folder ``work`` of a folder."""
    script = folder / "script.py"
    script.write_text(f"import warnings\nwarnings.simplefilter('ignore')\n{code}")
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return fork(folder, script, cwd=work)


# Notes the states that the loop saves, and ends the process after the third if asked.
SPY = """
import json, pathlib, sys
states = []
def spy(module, name, state_of):
    save = getattr(module, name)
    def noted(*args):
        save(*args)
        states.append(state_of(*args))
        if STOP and len(states) == 3:
            sys.exit(3)
    setattr(module, name, noted)
if LIBRARY == "torch":
    import torch
    spy(torch, "save", lambda saved, path: saved["data"])
else:
    spy(pathlib.Path, "write_text", lambda path, text: json.loads(text))
"""

# Trains again from the beginning, without a stop.
COMPARE = """
import numpy as np
seen, learnt = [[s["epoch"], s["position"]] for s in states], np.array(eval(LEARNT))
for path in pathlib.Path().iterdir():
    if path.is_file():
        path.unlink()
exec(LOOP)
whole = np.array(eval(LEARNT))
print(json.dumps([seen, bool(np.allclose(learnt, whole, atol=1e-6)), len(states)]))
"""


@pytest.mark.parametrize(
    "library",
    [pytest.param(each, marks=slow) if each == "ray" else each for each in LEARNT],
)
def test_a_training_loop_continues_where_it_was_stopped(tmp_path, library):
    pytest.importorskip(library)
    pytest.importorskip("PIL")
    data, *blocks = read_blocks(PAGE)
    (loop,) = (block.code for block in blocks if library in block.needs)
    values = {"LIBRARY": library, "LEARNT": LEARNT[library], "LOOP": loop}
    code = "".join(f"{name} = {value!r}\n" for name, value in values.items()) + SPY
    assert run(tmp_path, data.code).returncode == 0

    stopped = run(tmp_path, f"STOP = True\n{code}exec(LOOP)\n")
    assert stopped.returncode == 3, stopped.stderr

    done = run(tmp_path, f"STOP = False\n{code}exec(LOOP)\n{COMPARE}")
    assert done.returncode == 0, done.stderr
    seen, is_equal, count = json.loads(done.stdout.splitlines()[-1])
    ends = [64, 128, 192, 256] if library == "jax" else [64, 128, 192, 256, 300]
    epochs = [[epoch, end] for epoch in (0, 1) for end in ends]
    assert seen == epochs[3:]  # it stopped after [0, 192]
    assert count == len(seen) + len(epochs)
    assert is_equal
