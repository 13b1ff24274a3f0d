#!/bin/sh
# A relay: gets its certificate from the founder, and joins callers to the hospitals that nobody can dial.
set -eu
trap 'exit 143' TERM INT
. "$(dirname "$0")/await.sh"
name=$1
enrolment=${ENROLMENT:-/enrolment}
folder=$MHFL_HOME/relay

if [ ! -e "$folder/cert.pem" ]; then
    await "$enrolment/federation.toml"
    rm -f "/tmp/$name.csr"
    mhfl-peer relay init --federation "$enrolment/federation.toml" --name "$name" --folder "$folder" \
        --out "/tmp/$name.csr" --json > "/tmp/$name.json"
    python3 -c 'import json, sys; print(json.load(sys.stdin)["fingerprint"])' \
        < "/tmp/$name.json" > "/tmp/$name.fingerprint"
    hand_over "/tmp/$name.csr" "$enrolment/$name.csr"
    hand_over "/tmp/$name.fingerprint" "$enrolment/$name.fingerprint"
    await "$enrolment/$name.pem"
    mhfl-peer relay join "$enrolment/$name.pem" --folder "$folder"
fi
# 443 in real life; here, nobody in a container may listen below 1024.
printf 'name = "%s"\nlisten = "0.0.0.0:%s"\n' "$name" "${2:-7443}" > "$folder/relay.toml"
exec mhfl-peer relay start --folder "$folder"
