#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over src/, with the compile commands of a build that is configured already (default: build/dev). What needs
# MPI is in build/release alone, and looked at where that was built with an MPI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/dev}
tidy() { # build folder
  xargs -0 -r -n 1 -P "${JOBS:-$(nproc)}" clang-tidy-19 --quiet -p "$1"
}
{
  find src -name '*.cc' -not -path '*/mpi/*' -print0 | tidy "$build"
  if grep -qs '"file": .*/src/comm/mpi/' build/release/compile_commands.json; then
    find src -name '*.cc' -path '*/mpi/*' -print0 | tidy build/release
  fi
} 2> >(grep -vE 'warnings? generated|Suppressed|^Use -' >&2)
