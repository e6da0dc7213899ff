"""The extensions; all else is in pyproject.toml.

FASTSHARD_DEBUG=1     no optimisation, assertions and debug information
FASTSHARD_SANITIZE=1  AddressSanitizer and UndefinedBehaviorSanitizer
"""

import os
import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

CORE = Path("fastshard", "_core")
DEBUG = os.environ.get("FASTSHARD_DEBUG") == "1"
SANITIZE = os.environ.get("FASTSHARD_SANITIZE") == "1"
HEADERS = [
    str(path) for suffix in ("h", "pxd", "pyi") for path in CORE.glob(f"*.{suffix}")
]

flags = (
    ["/O2", "/W3"]
    if sys.platform == "win32"
    else [
        "-O3",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
        "-Wno-missing-field-initializers",
    ]
)
if DEBUG or SANITIZE:
    flags += ["-O0" if DEBUG else "-O1", "-g", "-UNDEBUG"]
links = []
if SANITIZE:
    links = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    flags += [*links, "-fno-omit-frame-pointer"]

extensions = [
    Extension(
        f"fastshard._core.{path.stem}",
        [str(path)],
        depends=HEADERS,
        include_dirs=[
            str(CORE),
            *([numpy.get_include()] if path.stem == "arrays" else []),
        ],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=flags,
        extra_link_args=links,
    )
    for path in sorted(CORE.glob("*.pyx"))
]
directives = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "auto_pickle": False,
    "autotestdict": False,
}
setup(
    ext_modules=cythonize(
        extensions, build_dir="build/c", compiler_directives=directives
    )
)
