#!/bin/sh
# The founder: makes the federation, then admits the hospitals that are named, and certifies relays, as relay=NAME. What
# was done before is kept.
#
# The folder /enrolment stands for the mail, to which anybody can write. In real life the fingerprint does not come by
# mail: it is read out over the telephone, and comparing it is the whole of the trust. The CA folder is in a volume that
# no hospital mounts; in real life it is on a machine that is switched off, or in a safe.
set -eu
trap 'exit 143' TERM INT
. "$(dirname "$0")/await.sh"
enrolment=${ENROLMENT:-/enrolment}
ca=$MHFL_HOME/ca

if [ ! -e "$ca" ]; then
    # What an earlier CA left in the mail: its bundles would be refused, and its federation.toml enrolled with.
    rm -f "$enrolment/federation.toml" "$enrolment"/*.bundle "$enrolment"/*.pem
    mhfl-peer federation create "$(dirname "$0")/federation.toml" --out "$ca"
fi
hand_over "$ca/federation.toml" "$enrolment/federation.toml"

for each in "$@"; do
    name=${each#relay=}
    if [ "$name" = "$each" ]; then answer=$name.bundle; else answer=$name.pem; fi
    [ ! -e "$enrolment/$answer" ] || continue
    await "$enrolment/$name.fingerprint"
    await "$enrolment/$name.csr"
    rm -f "/tmp/$answer"
    if [ "$name" = "$each" ]; then
        mhfl-peer federation admit --ca "$ca" "$enrolment/$name.csr" --out "/tmp/$answer" \
            --fingerprint "$(cat "$enrolment/$name.fingerprint")"
    else
        mhfl-peer federation admit --ca "$ca" "$enrolment/$name.csr" --out "/tmp/$answer" --relay \
            --fingerprint "$(cat "$enrolment/$name.fingerprint")"
    fi
    hand_over "/tmp/$answer" "$enrolment/$answer"
done
