#!/bin/sh
# Runs before the daemon at each start of the pod. The first time it makes the site's key, which never leaves the volume,
# shows the request and its fingerprint in its log, and waits for the bundle that the founder makes of it. A newer bundle
# in the secret renews the certificate at the next start.
set -eu
umask 077
etc=${MHFL_ETC:-/etc/mhfl}
request=${TMPDIR:-/tmp}/$SITE.csr
bundle=$etc/bundle/$SITE.bundle

rm -f "$request"
mhfl-peer site init --federation "$etc/federation/federation.toml" --site "$SITE" --out "$request"
set -- "$MHFL_HOME"/*/"$SITE"
folder=$1

if [ ! -e "$folder/pki/cert.pem" ]; then
  cat "$request"
  echo "waiting for the bundle: send this request to the founder, and read the fingerprint out over the telephone"
  until [ -e "$bundle" ]; do sleep 2; done
fi
if [ -e "$bundle" ] && ! cmp -s "$bundle" "$folder/joined.bundle"; then
  mhfl-peer site join "$bundle"
  cp "$bundle" "$folder/joined.bundle"
fi
cp "$etc/site/site.toml" "$folder/site.toml"
