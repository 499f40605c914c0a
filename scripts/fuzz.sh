#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target of a build from its seeds. What it finds stays in the build folder; a crash is kept there too.
# Usage: scripts/fuzz.sh BUILD SECONDS
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
seconds=$2

shopt -s nullglob
targets=("$build"/bin/*_fuzz)
((${#targets[@]})) || { echo "fuzz: no targets in $build/bin" >&2; exit 1; }
for target in "${targets[@]}"; do
  name=$(basename "$target" _fuzz)
  found=$build/corpus/$name
  mkdir -p "$found" "$build/crashes"
  log=$build/$name.log
  echo "fuzz: $name"
  "$target" -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$build/crashes/$name-" "$found" "tests/fuzz/corpus/$name" >"$log" 2>&1 || {
    tail -n 60 "$log" >&2
    echo "fuzz: $name failed; the input lies in $build/crashes" >&2
    exit 1
  }
  grep -E 'number_of_executed_units|new_units_added' "$log" | sed 's/^stat::/  /'
done
