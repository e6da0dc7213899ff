#!/usr/bin/env bash
# Build with AddressSanitizer and UndefinedBehaviorSanitizer into a folder of its
# own, and run the suite on that build. Needs gcc and the extras "test" and "dev".
#
#     tests/sanitize.sh [PYTHON] [PYTEST ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
shift || true

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
FASTSHARD_SANITIZE=1 "$python" setup.py --quiet build \
    --build-base "$build/base" --build-lib "$build/lib" >"$build/log" 2>&1 ||
    { cat "$build/log"; exit 1; }
if find "$build/lib" -name '*.so' -exec grep -L __asan_init {} + | grep .; then
    exit 1
fi

# PYTHONSAFEPATH: the working directory must not hide the sanitized build.
export PYTHONPATH="$build/lib" PYTHONSAFEPATH=1 PYTHONMALLOC=malloc
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:abort_on_error=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export FASTSHARD_SANITIZED=1
preload="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so)"
loaded=$(LD_PRELOAD="$preload" "$python" -c 'import fastshard; print(fastshard.__file__)')
[[ $loaded == "$build/lib/"* ]]
LD_PRELOAD="$preload" "$python" -m pytest -q --capture=sys -p no:cacheprovider "$@"
