#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that a job needs and that are missing. Idempotent; touches no network when none is.
# Usage: scripts/setup.sh [core|mpi|test|check|python]...   (default: core)
set -euo pipefail

declare -A packages=(
  [core]="g++ cmake ninja-build pkg-config libcli11-dev nlohmann-json3-dev libtomlplusplus-dev libfmt-dev libxxhash-dev librandom123-dev libhwy-dev"
  [mpi]="openmpi-bin libopenmpi-dev mpich libmpich-dev"
  [test]="libgtest-dev libgmock-dev librapidcheck-dev python3 python3-numpy python3-pytest iproute2"
  [check]="clang-19 libclang-rt-19-dev clang-format-19 clang-tidy-19 libbenchmark-dev"
  [python]="python3 python3-dev python3-venv"
)

die() {
  echo "setup: $*" >&2
  exit 1
}

wanted=()
for group in "${@:-core}"; do
  [[ -v packages[$group] ]] || die "unknown group «$group»; known: ${!packages[*]}"
  read -ra names <<<"${packages[$group]}"
  wanted+=("${names[@]}")
done

command -v dpkg-query >/dev/null ||
  die "this script knows Debian and Ubuntu only; elsewhere install the equivalents of: ${wanted[*]}"
# pkgconf serves as pkg-config under its own name, hence «Provides».
installed=$(dpkg-query -W -f '${db:Status-Abbrev}|${Package}\n${db:Status-Abbrev}|${Provides}\n' 2>/dev/null |
  sed -n 's/^ii *|//p' | sed 's/([^)]*)//g' | tr ',' '\n' | tr -d ' ')
missing=()
for name in "${wanted[@]}"; do
  grep -qxF -- "$name" <<<"$installed" || missing+=("$name")
done
if ((${#missing[@]} == 0)); then
  echo "setup: all ${#wanted[@]} packages for «${*:-core}» are there"
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || die "missing ${missing[*]}: run as root, or install sudo"
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "$@" </dev/null >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "«$*» failed"
  }
}
quietly apt-get -o Acquire::Retries=3 update
quietly apt-get -o Acquire::Retries=3 install -y --no-install-recommends "${missing[@]}"
echo "setup: installed ${#missing[@]} packages"
