"""The extensions; all else is in pyproject.toml.

FASTSHARD_DEBUG=1     no optimisation, and debug information
FASTSHARD_SANITIZE=1  AddressSanitizer and UndefinedBehaviorSanitizer
"""

import os
import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

CORE = Path("fastshard", "_core")
HEADERS = [str(path) for kind in ("h", "pxd") for path in CORE.rglob(f"*.{kind}")]
WARNINGS = "-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]

# -g0: CPython's own flags ask for -g, four fifths of a wheel.
compile_args, link_args = ["-O3", "-g0", *WARNINGS.split()], []
if sys.platform == "win32":
    compile_args = ["/O2", "/W3"]
if os.environ.get("FASTSHARD_DEBUG") == "1":
    compile_args += ["-O0", "-g", "-UNDEBUG"]
if os.environ.get("FASTSHARD_SANITIZE") == "1":
    compile_args += ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer", *SANITIZERS]
    link_args += SANITIZERS

extensions = [
    Extension(
        ".".join(path.with_suffix("").parts),
        [str(path)],
        depends=[*HEADERS, str(path)],  # so that the sdist has them
        include_dirs=[str(CORE / "include"), numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    for path in sorted(CORE.rglob("*.pyx"))
]
directives = {"language_level": 3, "boundscheck": False, "wraparound": False}
directives |= {"cdivision": True, "initializedcheck": False}
directives |= {"freethreading_compatible": True}
directives |= {"auto_pickle": False, "autotestdict": False}  # as stubtest needs
setup(
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    ext_modules=cythonize(
        extensions, build_dir="build/c", compiler_directives=directives
    ),
)
