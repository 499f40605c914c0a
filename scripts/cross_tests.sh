#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of the Python package, and tests against other people's implementations; both need packages from PyPI. Without
# PyPI they are skipped, loudly; so are the tests with torch where its CPU build is not at hand, and with Megatron-Core.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

banner() {
  local line
  line=$(printf '=%.0s' {1..97})
  printf '%s\n' "$line" "$@" "$line" >&2
}

status=0
scripts/python_package.sh || status=$?
if ((status == 3)); then
  banner "SKIPPED: tests/cross and python/tests need packages from PyPI, which cannot be reached." "All other tests counted."
  exit 0
elif ((status != 0)); then
  exit "$status"
fi
export ROUTEPACK_BIN=$PWD/build/release/bin/routepack
.venv/bin/python -m pytest -q -p no:cacheprovider tests/cross
.venv/bin/python -m pytest -q -p no:cacheprovider python/tests
if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
  banner "SKIPPED: the tests that read and write torch files, those with torch tensors, and those that train and move experts." \
    "pip found no CPU build of $(grep -v '^#' requirements/torch.txt); requirements/README.md says how to give it one." \
    "All other tests counted."
elif ! .venv/bin/python -c 'import megatron.core' 2>/dev/null; then
  banner "SKIPPED: the tests against the real Megatron-Core." \
    "pip found no $(grep -v '^#' requirements/megatron.txt) for this Python (3.11 has one)." \
    "All other tests counted."
fi
if ! .venv/bin/python -c 'import mpi4py' 2>/dev/null; then
  banner "SKIPPED: the tests of planning in a team over MPI from Python." \
    "pip found no $(grep -v '^#' requirements/mpi.txt) for this Python." "All other tests counted."
fi
