"""Run the tests of mosaicml-streaming with the readers, or all parts, of fastshard.

    python tests/upstream/run.py mosaicml_streaming-0.13.0/tests SUITE [-k zstd]

The folder is that of its source distribution, or of its repository. The suites:

- ``installed``: tests of datasets, with our readers under its StreamingDataset and
  LocalDataset;
- ``names``: tests of arrays, encodings, compression, hashes and writers, with our
  modules under its names;
- ``theirs``: all of them, without us.

``names:array,hashing`` runs these files alone. Tests run one after the other: names of
the shared memory are the same in all processes of a machine. Options of pytest may
follow.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Tests that pass, by suite and file: a run with fewer fails.
SUITES: dict[str, dict[str, int]] = {
    "names": {
        "array": 410,
        "encodings": 236,
        "compression": 215,
        "hashing": 16,
        "writer": 23,
    },
    "installed": {
        "reader": 57,
        "eviction": 18,
        "mixing": 10,
        "compression": 215,
        "hashing": 16,
        "writer": 23,
        "laziness": 5,
        "unsafe_types": 4,
        "shared": 14,
        "local": 2,
        "streaming": 22,  # its test functions
    },
}
SUITES["theirs"] = dict.fromkeys(SUITES["names"] | SUITES["installed"], 1)

# Tests that cannot pass, by suite, with the reason.
DIFFERENT: dict[str, dict[str, str]] = {
    "names": {
        "test_json_invalid_data": "calls a private method of its encoding",
        "test_png_encode_decode[I]": "Pillow 12 stores no PNG of mode I",
    },
    "installed": {},
    "theirs": {
        "test_png_encode_decode[I]": "Pillow 12 stores no PNG of mode I",
    },
}


def main(folder: str, suite: str = "installed", *options: str) -> int:
    """Run a suite; return 0 if exactly the expected tests fail."""
    suite, _, chosen = suite.partition(":")
    counts = dict.fromkeys(("passed", "failed", "error", "skipped"), 0)
    wrong = []
    for name in chosen.split(",") if chosen else SUITES[suite]:
        before = counts["passed"]
        for path in portions(Path(folder).resolve(), name):
            lines = run(path, suite, options)
            for key in counts:
                counts[key] += count(key, lines[-1])
            wrong += [line for line in lines if is_wrong(line, suite)]
            print(f"{path}: {lines[-1]}", flush=True)
        recorded = 0 if options else SUITES[suite].get(name, 1)  # options may select
        if (passed := counts["passed"] - before) < recorded:
            wrong.append(f"{name}: {passed} passed, of {recorded} that are recorded")
    print(*wrong, sep="\n")
    print(", ".join(f"{number} {key}" for key, number in counts.items()))
    return 1 if wrong or not counts["passed"] else 0


def portions(folder: Path, name: str) -> list[str]:
    """Return the arguments of processes: files, or tests where a file is too large."""
    path = folder / f"test_{name}.py"
    if name != "streaming" or not path.is_file():
        return [str(path)]
    tests = re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    return [f"{path}::{test}" for test in tests]


def run(path: str, suite: str, options: tuple[str, ...]) -> list[str]:
    """Run tests in a process of their own; return the lines of the short summary.

    The first is an error if pytest ended for another reason than failed tests.
    """
    folder = path.rpartition("/")[0]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", path, "-q", "-rfE", "--tb=short"),
                *("-c", os.devnull, "--rootdir", folder),
                *("-p", "upstream_plugin", "-p", "no:cacheprovider"),
                *("-m", "not daily and not remote", *options),
            ],
            env={
                **os.environ,
                "FASTSHARD_UPSTREAM": suite,
                "FASTSHARD_UPSTREAM_TESTS": folder,
                "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path[1:]]),
                "PYTHONDONTWRITEBYTECODE": "1",
                "TMPDIR": temporary,
            },
            capture_output=True,
            text=True,
        )
    lines = done.stdout.splitlines() or ["nothing was run"]
    has_ended = done.returncode not in (0, 1, 5) or not done.stdout
    if os.environ.get("FASTSHARD_UPSTREAM_VERBOSE") or has_ended:
        print(done.stdout, done.stderr, sep="\n")
    return [f"ERROR {path}: exit status {done.returncode}"] * has_ended + lines


def count(key: str, line: str) -> int:
    found = re.search(rf"(\d+) {key}", line)
    return int(found[1]) if found else 0


def is_wrong(line: str, suite: str) -> bool:
    """Return whether a line of the summary is of a test that should have passed."""
    return line.startswith(("FAILED", "ERROR")) and not any(
        f"::{name} " in f"{line} " for name in DIFFERENT[suite]
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
