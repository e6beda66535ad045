#!/usr/bin/env bash
# Run a command, as root, where every user may enter the directories above an interpreter: one that
# is below a closed home directory, such as /root, is all that can be seen of it. Other processes do
# not see that.
# usage: launch/open_python.sh PYTHON COMMAND...
set -euo pipefail
prefix=$("${1:?interpreter}" -c 'import sys; print(sys.base_prefix)')
shift
closed=
directory=$prefix
until [ "$directory" = / ]; do
    if (($(stat -c %a "$directory") % 2 == 0)); then
        closed=$directory
    fi
    directory=$(dirname "$directory")
done
[ -n "$closed" ] || exec "$@"
# shellcheck disable=SC2016 # expanded inside
exec unshare --mount bash -euc '
    held=$(mktemp -d)
    mount --bind "$1" "$held"
    mount -t tmpfs -o mode=755 tmpfs "$2"
    mkdir -p "$1"
    mount --move "$held" "$1"
    rmdir "$held"
    shift 2
    exec "$@"' open "$prefix" "$closed" "$@"
