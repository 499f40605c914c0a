#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every benchmark of a build. Arguments behind the build folder go to the micro benchmarks.
# Usage: scripts/bench.sh BUILD [Google Benchmark options]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
shift
"$build/bin/micro_benchmarks" "$@"
