#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats every C++ source; with --check it changes nothing and fails when a file would change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(-i)
[[ ${1:-} == --check ]] && mode=(--dry-run -Werror)
find include src tests benchmarks python/bindings \( -name '*.cc' -o -name '*.h' \) -print0 | xargs -0 -r clang-format-19 "${mode[@]}"
