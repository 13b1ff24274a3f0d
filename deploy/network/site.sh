#!/bin/sh
# One hospital: enrols, looks whether it would run, and becomes the daemon. Started again, it goes on where it was.
set -eu
trap 'exit 143' TERM INT
. "$(dirname "$0")/await.sh"
site=$1
enrolment=/enrolment
folder=$MHFL_HOME/network/$site

if [ ! -e "$folder/pki/cert.pem" ]; then
    await "$enrolment/federation.toml"
    rm -f "/tmp/$site.csr"
    # The key is made here and stays here; what leaves is the request, and its fingerprint by another channel.
    mhfl-peer site init --federation "$enrolment/federation.toml" --site "$site" --out "/tmp/$site.csr" --json \
        > "/tmp/$site.json"
    python3 -c 'import json, sys; print(json.load(sys.stdin)["fingerprint"])' \
        < "/tmp/$site.json" > "/tmp/$site.fingerprint"
    hand_over "/tmp/$site.csr" "$enrolment/$site.csr"
    hand_over "/tmp/$site.fingerprint" "$enrolment/$site.fingerprint"
    await "$enrolment/$site.bundle"
    mhfl-peer site join "$enrolment/$site.bundle"
fi
drafts=$(dirname "$0")
if [ -z "${2:-}" ]; then
    cp "$drafts/sites/$site.toml" "$folder/site.toml"
else
    # The folder that is named has where the site listens, and its ways to the others. Metrics are served to nobody.
    {
        cat "$drafts/$2/$site.toml"
        sed '1,/^listen = /d; /^\[metrics\]/,$d' "$drafts/sites/$site.toml"
    } > "$folder/site.toml"
fi

await "/data/$site/set"

# Before the first start alone: a site that comes back is awaited, and its worker looks at everything again.
[ -e "$folder/gen-0001" ] || mhfl-peer check --site "$site"
exec mhfl-peer start --site "$site"
