#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Rewrites python/routepack/_core.pyi from the compiled module (`make python` first). A test compares the two.
# Usage: scripts/stubs.sh [OUTPUT]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
.venv/bin/python -m nanobind.stubgen -q -m routepack._core -o "${1:-python/routepack/_core.pyi}"
