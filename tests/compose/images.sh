#!/usr/bin/env bash
# Images for the tests of the compose stack, where official ones cannot be pulled: one of Debian's packages in place
# of python, Prometheus and Alertmanager, and on it the two of this project by their own Dockerfiles.
# Needs DOCKER_HOST. The file system of the first is kept in the cache folder: debootstrap takes minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fusewire
base=$cache/test-base.tar
packages=python3,python3-venv,python3-pip,ca-certificates,wget,prometheus,prometheus-alertmanager

if [ ! -s "$base" ]; then
  mkdir -p "$cache"
  root=$(mktemp --directory)
  trap 'rm -rf "$root"' EXIT
  debootstrap --variant=minbase --include="$packages" bookworm "$root" >"$cache/debootstrap.log"
  # What pip needs here it needs in there: the authorities that this machine trusts, and torch as it gets it.
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  mkdir "$root/opt/wheels"
  .venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest "$root/opt/wheels" \
    "$(grep '^torch==' requirements.lock)"
  printf '[global]\nfind-links = /opt/wheels\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$root/etc/pip.conf"
  install --directory --owner 65534 --group 65534 "$root/prometheus" "$root/alertmanager" # as the official images
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/usr/share/doc "$root"/usr/share/man
  tar -C "$root" -cf "$base.new" .
  mv "$base.new" "$base"
fi
docker image inspect fusewire-test-base:1 >/dev/null 2>&1 || docker import "$base" fusewire-test-base:1
for name in webhook trainer; do
  DOCKER_BUILDKIT=0 docker build --network host --build-arg BASE=fusewire-test-base:1 \
    --file compose/$name/Dockerfile --tag fusewire-$name:0.1.0 .
done
