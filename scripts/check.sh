#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything `make check` looks at, in the order in which it fails fastest. Stops at the first failure.
# FUZZ_SECONDS: time per fuzz target. RC_PARAMS: passed on to the property tests. JOBS: parallel jobs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-/usr/bin/python3}
jobs=${JOBS:-$(nproc)}
export ROUTEPACK_BIN=$PWD/build/release/bin/routepack
export PYTHONDONTWRITEBYTECODE=1

step() { printf '\n== %s\n' "$*"; }

build() { # preset
  cmake --preset "$1" --log-level=WARNING "${@:2}"
  cmake --build "build/$1" --parallel "$jobs"
}

build_and_test() { # preset
  build "$1" -DROUTEPACK_TESTS=ON
  ctest --test-dir "build/$1" --output-on-failure --parallel "$jobs" --no-tests=error
}

end_to_end() { "$python" -m pytest -q -p no:cacheprovider "$@"; }

step "format"
scripts/format.sh --check

step "release: build, tests, end-to-end tests (with the arrows of the includes, licence lines, docs against --help)"
build_and_test release
end_to_end tests/e2e

step "the commands of README.md and docs/"
"$python" scripts/docs_commands.py

step "the Python package: its tests, types and stubs, and the files that packages from PyPI read and write"
scripts/cross_tests.sh

step "the sdist and the wheel, installed into an environment with nothing but numpy"
status=0
scripts/python_package.sh && scripts/wheel_test.sh || status=$?
if ((status == 3)); then
  echo "SKIPPED: the wheel's environment needs numpy from PyPI, which cannot be reached." >&2
elif ((status != 0)); then
  exit "$status"
fi

step "dev (AddressSanitizer, UndefinedBehaviorSanitizer, heavy asserts): build, tests, end-to-end tests"
build_and_test dev
ROUTEPACK_BIN=$PWD/build/dev/bin/routepack end_to_end -m "not memory" tests/e2e

step "clang-tidy"
scripts/lint.sh build/dev

step "tsan: build, tests"
build_and_test tsan

step "fuzzing, ${FUZZ_SECONDS:=20} s per target"
build fuzz
scripts/fuzz.sh build/fuzz "$FUZZ_SECONDS"

step "all checks passed"
