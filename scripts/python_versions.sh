#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the package from its sdist with each interpreter named, in an environment of its own, and runs the Python tests
# there. `make python` first. Usage: scripts/python_versions.sh PYTHON...   (such as python3.10 python3.13)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
(($# > 0)) || { echo "python versions: found no interpreter, wanted at least one" >&2; exit 2; }
out=$PWD/build/pythons
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
export PYTHONDONTWRITEBYTECODE=1
unset ROUTEPACK_BIN # the tests that compare with another build are for that build's Python
failed=()

rm -rf "$out/dist" "$out/source"
mkdir -p "$out/dist" "$out/source"
.venv/bin/python -c "from scikit_build_core.build import build_sdist; build_sdist('$out/dist')" >"$out/sdist.log" 2>&1
tar -xzf "$out"/dist/routepack-*.tar.gz -C "$out/source" --strip-components=1

for interpreter in "$@"; do
  version=$("$interpreter" -c 'import platform; print(platform.python_version())')
  home=$out/$version
  rm -rf "$home/venv"
  mkdir -p "$home"
  "$interpreter" -m venv "$home/venv"
  pip=("$home/venv/bin/python" -m pip install --disable-pip-version-check --retries 2)
  if ! "${pip[@]}" --quiet -r requirements/dev.txt </dev/null 2>"$home/tools.log"; then
    tail -n 5 "$home/tools.log" >&2
    echo "python versions: $version: the packages of requirements/dev.txt could not be installed" >&2
    exit 3
  fi
  if ! "${pip[@]}" --no-build-isolation --no-deps --no-index --config-settings=build-dir="$out/build-$version" \
    "$out/source" </dev/null >"$home/build.log" 2>&1; then
    echo "python versions: $version: the build failed; $home/build.log has everything" >&2
    failed+=("$version")
    continue
  fi
  "$home/venv/bin/python" -m pytest -q -p no:cacheprovider python/tests >"$home/tests.log" 2>&1 || failed+=("$version")
  echo "python versions: $version: $(grep -E '[0-9]+ passed|failed|error' "$home/tests.log" | tail -n 1)"
done
((${#failed[@]} == 0)) || { echo "python versions: failed with ${failed[*]}" >&2; exit 1; }
