#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests against other people's implementations, which come from PyPI. Without PyPI they are skipped, loudly.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

status=0
scripts/venv.sh || status=$?
if ((status == 3)); then
  echo "=================================================================================================" >&2
  echo "SKIPPED: tests/cross needs packages from PyPI, which cannot be reached. All other tests counted." >&2
  echo "=================================================================================================" >&2
  exit 0
elif ((status != 0)); then
  exit "$status"
fi
ROUTEPACK_BIN=$PWD/build/release/bin/routepack .venv/bin/python -m pytest -q -p no:cacheprovider tests/cross
