#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job on real routing: plan one step of gpt-oss-20b, check the plan independently, say what to try next.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
routepack=build/release/bin/routepack
window=examples/windows/gptoss20b-mmlu-354.safetensors
plan=build/demo/plan.json

show() {
  printf '\n$ %s\n' "$*"
  "$@"
}

mkdir -p build/demo
show "$routepack" plan "$window" --dp 8 --ep 8 --cap 2048 --cost examples/gptoss20b.toml -o "$plan"
show "$routepack" verify "$window" "$plan"
cat <<END

The plan lies in $plan: «layout» says which samples each slot trains in each row, «physical_to_logical» which expert
each slot of a layer holds. README.md explains the figures. To try next:
  $routepack inspect $window
  $routepack plan examples/windows/mixtral-mmlu-512.safetensors --dp 4 --ep 4 --cap 8192 \\
      --cost examples/mixtral8x7b.toml -o build/demo/mixtral.json
  $routepack plan --help
END
