#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of the Python package, and tests against other people's implementations; both need packages from PyPI. Without
# PyPI they are skipped, loudly.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

status=0
scripts/python_package.sh || status=$?
if ((status == 3)); then
  echo "=================================================================================================" >&2
  echo "SKIPPED: tests/cross and python/tests need packages from PyPI, which cannot be reached." >&2
  echo "All other tests counted." >&2
  echo "=================================================================================================" >&2
  exit 0
elif ((status != 0)); then
  exit "$status"
fi
export ROUTEPACK_BIN=$PWD/build/release/bin/routepack
.venv/bin/python -m pytest -q -p no:cacheprovider tests/cross
.venv/bin/python -m pytest -q -p no:cacheprovider python/tests
