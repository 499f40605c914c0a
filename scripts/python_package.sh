#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python package into .venv: the compiled part from the sources as they are, the Python files in place
# (editable), so that only changes of C++ need another run. Exit status 3: the package index could not be reached.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh core python
scripts/venv.sh
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
mkdir -p build
if ! .venv/bin/python -m pip install --no-build-isolation --no-deps --no-index --disable-pip-version-check --verbose \
  --config-settings=build-dir=build/python --editable . </dev/null >build/python.log 2>&1; then
  grep -E 'error|Error|FAILED' build/python.log | head -n 20 >&2 || true
  echo "python: the build failed; build/python.log has everything" >&2
  exit 1
fi
echo "python: .venv/bin/python imports routepack $(.venv/bin/python -c 'import routepack; print(routepack.__version__)')"
