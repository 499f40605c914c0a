#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over src/, with the compile commands of a build that is configured already (default: build/dev).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/dev}
find src -name '*.cc' -print0 |
  xargs -0 -r -n 1 -P "${JOBS:-$(nproc)}" clang-tidy-19 --quiet -p "$build" 2> >(grep -vE 'warnings? generated|Suppressed|^Use -' >&2)
