#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the sdist and the wheel (scripts/wheel.sh), installs the wheel into a fresh environment that has nothing but
# numpy, and uses it there as a stranger would. Exit status 3: the package index could not be reached.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
scripts/wheel.sh
wheels=(build/wheel/dist/routepack-*.whl)
((${#wheels[@]} == 1)) || { echo "wheel test: found ${#wheels[@]} wheels, wanted 1" >&2; exit 1; }

fail() {
  echo "wheel test: $*" >&2
  exit 1
}

# No newer than manylinux_2_36 when it is built on such a system (Debian 12); elsewhere the system decides.
tag=$(basename "${wheels[0]}" | grep -oE 'manylinux_2_[0-9]+' | sed 's/.*_//' | sort -n | tail -n 1 || true)
glibc=$(getconf GNU_LIBC_VERSION | sed 's/.*\.//')
[[ $tag =~ ^[0-9]+$ ]] || fail "${wheels[0]}: found no manylinux tag"
((tag <= (glibc > 36 ? glibc : 36))) || fail "${wheels[0]}: found manylinux_2_$tag, wanted manylinux_2_36 or older"

clean=$root/build/wheel/clean
rm -rf "$clean"
"${PYTHON:-/usr/bin/python3}" -m venv "$clean/venv"
"$clean/venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 2 "${wheels[0]}" \
  </dev/null 2>build/wheel/install.log || {
  tail -n 5 build/wheel/install.log >&2
  echo "wheel test: numpy could not be installed" >&2
  exit 3
}
installed=$("$clean/venv/bin/python" -m pip list --disable-pip-version-check --format=freeze | sed 's/[=@ ].*//' |
  grep -vxE 'pip|setuptools|wheel' | sort | tr '\n' ' ')
[[ $installed == "numpy routepack " ]] || fail "found $installed installed, wanted numpy and routepack alone"

# Nothing of this checkout, of the caller's environment or of the system's own copies of the bundled libraries.
cp -r examples "$clean/examples"
cd "$clean"
stranger() { env -i HOME="$clean" PATH="$clean/venv/bin:/usr/bin:/bin" LC_ALL=C.UTF-8 "$@"; }
package=$(stranger python -c 'import pathlib, routepack; print(pathlib.Path(routepack.__file__).parent)')
[[ -s $package/licenses/libhwy-dev.txt ]] || echo "wheel test: this system ships no licence texts of its packages" >&2
[[ $package == "$clean"/* ]] || fail "found routepack in $package, wanted the installed one"
for binary in "$package"/_core*.so "$package/bin/routepack"; do
  linked=$(stranger ldd "$binary")
  foreign=$(grep -vE 'linux-vdso|ld-linux|lib(c|m|gcc_s|stdc\+\+|pthread|dl|rt)\.so' <<<"$linked" |
    grep -vF "/routepack.libs/" || true)
  [[ -z $foreign ]] || fail "$binary needs what only this machine may have: $foreign"
done

window=examples/windows/gptoss20b-mmlu-354.safetensors
for subcommand in plan verify convert report; do
  stranger routepack --help | grep -qE "^  $subcommand " || fail "routepack --help does not name $subcommand"
done
common=("$window" --dp 8 --ep 8 --cost examples/gptoss20b.toml)
options=("${common[@]}" --cap 2048 --json)
hash_of() { sed -nE 's/.*"hash": "(xxh3:[0-9a-f]+)".*/\1/p'; }
from_command=$(stranger routepack plan "${options[@]}" -o command.json | hash_of)
stranger routepack verify "$window" command.json >/dev/null
stranger routepack report command.json "$window" --json >report.json
cat >plan.py <<'END'
import routepack

window = routepack.Window.load("examples/windows/gptoss20b-mmlu-354.safetensors")
plan = routepack.plan(
    window,
    routepack.Topology(dp=8, ep=8),
    capacity=2048,
    cost=routepack.CostModel.load("examples/gptoss20b.toml"),
)
assert plan.verify(window) == []
print(plan.hash)
END
from_python=$(stranger python plan.py)
[[ -n $from_command && $from_command == "$from_python" ]] ||
  fail "found plan $from_python from Python and $from_command from the command line, wanted the same"
if [[ -x $root/build/release/bin/routepack ]]; then
  from_build=$("$root/build/release/bin/routepack" plan "${options[@]}" -o build.json | hash_of)
  [[ $from_build == "$from_command" ]] || fail "found plan $from_command, wanted $from_build as from build/release"
fi
status=0
stranger routepack plan "${common[@]}" --cap 16 -o none.json 2>/dev/null || status=$?
((status == 3)) || fail "found exit status $status for a plan that cannot be, wanted 3"

echo "wheel test: $(basename "${wheels[0]}") plans $from_command with numpy alone"
