#!/bin/sh
# Fill the volumes of secrets, once: what lies in /given is taken, what is missing is made. Each volume holds what its
# service may know and nothing else, readable by group 10001 only.
set -eu
umask 077

put() { # put VOLUME FILE: from /given, or what the volume has, or else a new random token
  target=/secrets/$1/$2
  if [ -s "/given/$2" ]; then
    cat "/given/$2" >"$target.new"
  elif [ -s "$target" ]; then
    return
  else
    head -c 32 /dev/urandom | sha256sum | cut -c 1-64 >"$target.new"
  fi
  chown 0:10001 "$target.new"
  chmod 0440 "$target.new"
  mv "$target.new" "$target"
}

for volume in watch alertmanager command grafana; do
  chown 0:10001 "/secrets/$volume"
  chmod 0750 "/secrets/$volume"
done
put watch alert_token
put command command_token
put grafana admin_password
cat /secrets/watch/alert_token >/secrets/alertmanager/alert_token.new
chown 0:10001 /secrets/alertmanager/alert_token.new
chmod 0440 /secrets/alertmanager/alert_token.new
mv /secrets/alertmanager/alert_token.new /secrets/alertmanager/alert_token
for name in smtp_password pager_token; do # the receivers of people, where there are any
  if [ -s "/given/$name" ]; then put alertmanager "$name"; fi
done
