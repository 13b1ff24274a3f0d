#!/bin/sh
# A hospital whose daemon is killed with SIGKILL, once, when it has committed so many rounds: no farewell, no
# checkpoint. The container ends with it, exit code 137, and the restart policy brings both back.
set -eu
site=$1
rounds=$2
here=$(dirname "$0")
killed=$MHFL_HOME/killed

[ ! -e "$killed" ] || exec "$here/site.sh" "$site"

committed() {
    mhfl-peer status --site "$site" --json 2> /dev/null \
        | python3 -c 'import json, sys; print(json.load(sys.stdin)["committed"])' 2> /dev/null \
        || echo 0
}

"$here/site.sh" "$site" &
daemon=$!
trap 'kill -TERM "$daemon"; wait "$daemon"; exit' TERM INT
while kill -0 "$daemon" 2> /dev/null; do
    if [ "$(committed)" -ge "$rounds" ]; then
        touch "$killed"
        echo "trouble: kill -9 $daemon" >&2
        kill -KILL "$daemon"
        break
    fi
    sleep 1
done
wait "$daemon"
