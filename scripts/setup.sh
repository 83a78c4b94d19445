#!/usr/bin/env bash
# Set up everything that the Makefile's targets need, once; a second call takes a moment.
# With the argument "tests" also what only the tests need: a C compiler (for the fake of NVML) and Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

python=""
for candidate in "${PYTHON:-}" python3.11 python3 python3.12 python3.13; do
  [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
  if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
  say "no Python 3.11 or newer found; install one, or name it: make PYTHON=/path/to/python3 …"
  exit 1
fi

install_debian() { # install_debian PACKAGE…
  if ! command -v apt-get >/dev/null 2>&1; then
    say "please install: $* (this script knows Debian and Ubuntu only)"
    exit 1
  fi
  local sudo=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || { say "please install as root: apt-get install $*"; exit 1; }
    sudo=(sudo)
  fi
  say "installing Debian packages: $*"
  "${sudo[@]}" apt-get update -qq
  # policy-rc.d is not touched: where systemd runs, the packages start their own services on their default
  # ports; fusewire starts its own on free ports and leaves those alone.
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

missing=()
{ command -v prometheus && command -v promtool; } >/dev/null 2>&1 || missing+=(prometheus)
{ { command -v alertmanager || command -v prometheus-alertmanager; } && command -v amtool; } >/dev/null 2>&1 \
  || missing+=(prometheus-alertmanager)
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ "${1:-}" = tests ]; then
  command -v cc >/dev/null 2>&1 || missing+=(gcc libc6-dev)
  { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null 2>&1 \
    || missing+=(chromium)
fi
[ ${#missing[@]} -eq 0 ] || install_debian "${missing[@]}"

stamp=.venv/.setup-$(cat requirements.lock pyproject.toml scripts/setup.sh | sha256sum | cut -c1-16)
if [ ! -e "$stamp" ]; then
  say "making the virtual environment .venv ($("$python" --version))"
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  say "installing locked dependencies (torch is the large one)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
  rm -f .venv/.setup-*
  touch "$stamp"
fi
