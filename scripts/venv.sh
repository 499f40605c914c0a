#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes .venv with the tools of requirements/dev.txt, with Ray, with torch where its CPU build is at hand (the builds for
# GPUs take gigabytes), and then with Megatron-Core, frameworks and mpi4py. Idempotent: asks the package index only when a
# list changed.
# Exit status 3: the package index could not be reached.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-/usr/bin/python3}

stamp=.venv/routepack-requirements.txt
if [[ -x .venv/bin/python ]] && cmp -s <(cat requirements/*.txt) "$stamp"; then
  echo "venv: .venv is up to date"
  exit 0
fi
scripts/setup.sh python
[[ -x .venv/bin/python ]] || "$python" -m venv .venv
mkdir -p build
pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 2)
if ! "${pip[@]}" -r requirements/dev.txt </dev/null 2>build/venv.log; then
  tail -n 5 build/venv.log >&2
  echo "venv: the packages of requirements/dev.txt could not be installed" >&2
  exit 3
fi
echo "venv: installed $(grep -vc '^#' requirements/dev.txt) tools and what they need into .venv"
if "${pip[@]}" --only-binary :all: -r requirements/ray.txt </dev/null 2>build/venv-ray.log; then
  echo "venv: installed Ray into .venv"
else
  echo "venv: no Ray for this Python was found: tests on a Ray cluster will be skipped" >&2
fi
# No package of the public index has a local version, so «+cpu» can mean nothing but a small build.
if "${pip[@]}" -r requirements/torch.txt -c <(grep -v '^#' requirements/torch.txt | sed 's/$/+cpu/') --only-binary torch \
  </dev/null 2>build/venv-torch.log; then
  echo "venv: installed the CPU build of torch into .venv"
else
  echo "venv: no CPU build of torch was found: tests with torch will be skipped" >&2
fi
# Of what it asks for, torch, numpy and packaging are all that the tests meet.
if .venv/bin/python -c 'import torch' 2>/dev/null &&
  "${pip[@]}" --no-deps --only-binary :all: -r requirements/megatron.txt </dev/null 2>build/venv-megatron.log; then
  echo "venv: installed Megatron-Core into .venv"
else
  echo "venv: no Megatron-Core for this Python was found: tests against it will be skipped" >&2
fi
# verl and AReaL ask for engines, kernels and services that no test meets: what the tests do meet is on the list.
if .venv/bin/python -c 'import torch' 2>/dev/null &&
  "${pip[@]}" --no-deps --only-binary :all: -r requirements/frameworks.txt </dev/null 2>build/venv-frameworks.log; then
  echo "venv: installed verl and AReaL into .venv"
else
  echo "venv: no verl and AReaL for this Python were found: tests against them will be skipped" >&2
fi
if "${pip[@]}" --no-deps --only-binary :all: -r requirements/mpi.txt </dev/null 2>build/venv-mpi.log; then
  echo "venv: installed mpi4py into .venv"
else
  echo "venv: no mpi4py for this Python was found: tests of teams over MPI will be skipped" >&2
fi
cat requirements/*.txt >"$stamp"
