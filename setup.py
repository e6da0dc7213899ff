"""The extensions; all else is in pyproject.toml.

FASTSHARD_DEBUG=1     no optimisation, and debug information
FASTSHARD_SANITIZE=1  AddressSanitizer and UndefinedBehaviorSanitizer
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

CORE = Path("fastshard", "_core")
HEADERS = [str(path) for kind in ("h", "pxd") for path in CORE.rglob(f"*.{kind}")]
WARNINGS = "-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
PROCESSORS = os.cpu_count() or 1

# -g0: CPython's own flags ask for -g, four fifths of a wheel. -s: without symbols.
base, compile_args, link_args = "build/release", ["-O3", "-g0", *WARNINGS.split()], []
if sys.platform == "win32":
    compile_args = ["/O2", "/W3"]
elif sys.platform == "linux":
    link_args = ["-Wl,-s"]
if os.environ.get("FASTSHARD_DEBUG") == "1":
    base, link_args = "build/debug", []
    compile_args += ["-O0", "-g", "-UNDEBUG"]
if os.environ.get("FASTSHARD_SANITIZE") == "1":
    base, link_args = "build/sanitized", SANITIZERS
    compile_args += ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer", *SANITIZERS]

directives = {"language_level": 3, "boundscheck": False, "wraparound": False}
directives |= {"cdivision": True, "initializedcheck": False}
directives |= {"freethreading_compatible": True}
directives |= {"auto_pickle": False, "autotestdict": False}  # as stubtest needs


class BuildExtensions(build_ext):
    """Translate to C in several processes; keep what editable installs compile."""

    def finalize_options(self):
        super().finalize_options()
        if self.editable_mode:  # else in a temporary directory, all anew each time
            kept = build(self.distribution)
            kept.build_base = base
            kept.ensure_finalized()
            self.build_lib, self.build_temp = kept.build_platlib, kept.build_temp

    def run(self):
        import numpy
        from Cython.Build import cythonize

        options = {"build_dir": "build/c", "compiler_directives": directives}
        translated = cythonize(self.extensions, nthreads=PROCESSORS, **options)
        for extension, c in zip(self.extensions, translated, strict=True):
            extension.sources = c.sources
            extension.depends.append("setup.py")
            extension.include_dirs = [str(CORE / "include"), numpy.get_include()]
        super().run()


extensions = [
    Extension(
        ".".join(path.with_suffix("").parts),
        [str(path)],
        depends=[*HEADERS, str(path)],  # so that the sdist has them
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    # The largest first, so that a short one ends last.
    for path in sorted(CORE.rglob("*.pyx"), key=lambda path: -path.stat().st_size)
]
if __name__ == "__main__":  # processes that do not fork import this file
    setup(
        options={"build": {"build_base": base}, "build_ext": {"parallel": PROCESSORS}},
        cmdclass={"build_ext": BuildExtensions},
        ext_modules=extensions,
    )
