#!/usr/bin/env bash
# Resolve pyproject.toml's dependencies in a fresh environment and write requirements.lock: exact versions, in pip's form.
# No hashes: torch's build differs by machine, and pip takes hashes for all lines of a file or for none.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0
"$work/venv/bin/pip" install --quiet --disable-pip-version-check hatchling editables
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation '.[dev]'
{
  echo "# written by \`make lock\` for Python 3.11 on Linux; install with: pip install -r requirements.lock"
  "$work/venv/bin/pip" freeze --exclude attuner --exclude-editable | sed -e 's/+cpu$//' | grep -v ' @ file:'
} > requirements.lock
