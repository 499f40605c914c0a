#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes .venv with the tools of requirements/dev.txt. Idempotent: asks the package index only when the list changed.
# Exit status 3: the package index could not be reached.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-/usr/bin/python3}

stamp=.venv/routepack-requirements.txt
if [[ -x .venv/bin/python ]] && cmp -s requirements/dev.txt "$stamp"; then
  echo "venv: .venv is up to date"
  exit 0
fi
scripts/setup.sh python
[[ -x .venv/bin/python ]] || "$python" -m venv .venv
mkdir -p build
if ! .venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 2 -r requirements/dev.txt \
  </dev/null 2>build/venv.log; then
  tail -n 5 build/venv.log >&2
  echo "venv: the packages of requirements/dev.txt could not be installed" >&2
  exit 3
fi
cp requirements/dev.txt "$stamp"
echo "venv: installed $(grep -vc '^#' requirements/dev.txt) tools and what they need into .venv"
