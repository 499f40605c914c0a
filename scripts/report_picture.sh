#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes docs/images/report.png again: the top of a report page, as Debian's chromium draws it at 1920 x 905 without a
# network. Needs `make python` and the package chromium. Usage: scripts/report_picture.sh [OUTPUT]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
output=${1:-docs/images/report.png}
command -v chromium >/dev/null || { echo "report picture: found no chromium, wanted Debian's package of that name" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
routepack() { .venv/bin/python -m routepack "$@" >/dev/null; }

window=examples/windows/gptoss20b-mmlu-354.safetensors
options=("$window" --dp 8 --ep 8 --cap 2048 --cost examples/gptoss20b.toml)
routepack plan "${options[@]}" -o "$work/plan.json"
routepack plan "${options[@]}" --moves 0.1 -o "$work/few-moves.json"
routepack report "$work/plan.json" "$window" --against "$work/few-moves.json" -o "$work/report.html"
chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars --run-all-compositor-stages-before-draw \
  --user-data-dir="$work/profile" --host-resolver-rules='MAP * ~NOTFOUND' --window-size=1920,905 --virtual-time-budget=30000 \
  --screenshot="$work/page.png" "file://$work/report.html" 2>"$work/chromium.log" || { tail -n 3 "$work/chromium.log" >&2; exit 1; }
# Smaller, with a palette: the page has few colours.
.venv/bin/python - "$work/page.png" "$output" <<'END'
import sys

from PIL import Image

picture = Image.open(sys.argv[1]).convert("RGB").resize((1280, 603), Image.Resampling.LANCZOS)
picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(sys.argv[2], optimize=True)
END
echo "report picture: made $output ($(stat -c %s "$output") bytes)"
