# shellcheck shell=sh
# Sourced by the other scripts: how containers that share only a folder hand each other files.

# Wait for a file, at most ten minutes: `docker compose up` starts everything at once.
await() {
    tries=600
    until [ -e "$1" ]; do
        tries=$((tries - 1))
        if [ "$tries" -eq 0 ]; then
            echo "$1 did not come in ten minutes: look at the log of who should write it" >&2
            exit 1
        fi
        sleep 1
    done
}

# Put a file where another container awaits it, whole or not at all.
hand_over() {
    cp "$1" "$2.new"
    mv "$2.new" "$2"
}
