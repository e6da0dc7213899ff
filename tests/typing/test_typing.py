"""Public types as mypy and pyright read them, with torch and without it."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastshard
from support.marks import not_sanitized, slow
from support.pyright import pyright_problem

HERE = Path(__file__).parent
PACKAGES = Path(fastshard.__file__).parents[1]  # the folder with the package
IS_INSTALLED = PACKAGES.name == "site-packages"
HAS_TORCH = importlib.util.find_spec("torch") is not None
# Not read: the code has no name of these modules.
UNUSED = (
    *("torch._dynamo.*", "torch._inductor.*", "torch.ao.*", "torch.distributed.*"),
    *("torch.fx.*", "torch.onnx.*", "jax.*", "ray.*", "pandas.*"),
)
RESULTS = ("results.py", "typed_results.py", "index_results.py")
MISTAKES = ("mistakes.py", "typed_mistakes.py")


def run(*command, **env):
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        capture_output=True,
        text=True,
        env=os.environ | env,
    )


def mypy_errors(folder, files, paths):
    pytest.importorskip("mypy")
    config = folder / "mypy.ini"
    config.write_text(
        f"[mypy-{','.join(UNUSED)}]\nfollow_imports = skip\n"
        "[mypy-fastshard.*]\nignore_errors = true\n"  # reads no bodies of functions
    )
    done = run(
        *("mypy", "--strict", "--output=json", "--config-file", config),
        *(
            "--cache-dir",
            folder.parents[1] / "mypy",
            *(folder / name for name in files),
        ),
        MYPYPATH=os.pathsep.join(map(str, paths)),
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    for line in done.stdout.splitlines():
        found = json.loads(line)
        if found["severity"] == "error":
            yield found["file"], found["line"], found["code"], found["message"]


def pyright_errors(folder, files, paths):
    if problem := pyright_problem():
        pytest.skip(problem)
    config = {"include": files, "extraPaths": [*map(str, paths)], "strict": [*RESULTS]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    done = run(
        *("pyright", "--project", folder, "--pythonpath", sys.executable),
        "--outputjson",
        PYRIGHT_PYTHON_IGNORE_WARNINGS="1",
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    for found in json.loads(done.stdout)["generalDiagnostics"]:
        line = found["range"]["start"]["line"] + 1
        if found["severity"] == "error":
            yield found["file"], line, found.get("rule", "syntax"), found["message"]


CHECKERS = {"mypy": mypy_errors, "pyright": pyright_errors}


def expected_errors(checker):
    """Return the file, the line and the code of each error that comments name."""
    errors = set()
    for name in MISTAKES:
        for number, line in enumerate((HERE / name).read_text().splitlines(), 1):
            mypy, _, pyright = line.partition("# E: ")[2].partition(", ")
            codes = mypy if checker == "mypy" else pyright
            errors |= {(name, number, code) for code in codes.split()}
    return errors


@not_sanitized
@pytest.mark.parametrize(
    "torch", ["with torch", pytest.param("without torch", marks=slow)]
)
@pytest.mark.parametrize("checker", CHECKERS)
def test_users_code_type_checks(tmp_path, checker, torch):
    files = [*RESULTS, *MISTAKES]
    paths = [] if IS_INSTALLED else [PACKAGES]
    if torch == "without torch":
        (tmp_path / "hidden" / "torch").mkdir(parents=True)
        (tmp_path / "hidden" / "torch" / "__init__.py").touch()
        paths = [tmp_path / "hidden", *paths]
    elif HAS_TORCH:
        files.append("torch_loading.py")
    else:
        pytest.skip("torch is not installed")
    folder = tmp_path / "code"
    folder.mkdir()
    for name in files:
        shutil.copy(HERE / name, folder)
    found = [
        (Path(path).name, line, code, message)
        for path, line, code, message in CHECKERS[checker](folder, files, paths)
        if Path(path).name in files
    ]
    assert [error for error in found if error[0] not in MISTAKES] == []
    assert {error[:3] for error in found} == expected_errors(checker)
