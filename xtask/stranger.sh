#!/usr/bin/env bash
# Follows README.md from top to bottom as a stranger does: runs every `sh` block, also those that
# `cargo xtask readme` leaves out because they compile, and prints the exit status and the time of
# each. A block is read from standard input, as a terminal reads a block that is pasted.
#
# It installs packages and the program, so run it as root in a container that has nothing but a C
# linker and a Rust toolchain, in a fresh clone: bash xtask/stranger.sh
set -euo pipefail
cd "$(dirname "$0")/.."
blocks=$(mktemp -d)
awk -v to="$blocks" '
    /^```sh$/ { file = sprintf("%s/%04d", to, NR); printf "" > file; inside = 1; next }
    /^```$/   { inside = 0 }
    inside    { print > file }' README.md

failed=0
for block in "$blocks"/*; do
    begun=$SECONDS status=0
    # A program that reads the lines after it would hide them: then the shell does not end with 77.
    # A program in the background that has failed counts, too; one that a signal has ended does not.
    { echo 'set -euo pipefail; set -m'; cat "$block"
      echo "if jobs | grep -E '  Exit ([1-9]|[1-9][0-9]|1[01][0-9]|12[0-7])  ' >&2; then exit 1; fi"
      echo 'exit 77'; } |
        timeout 3000 bash >"$block.said" 2>&1 || status=$?
    case $status in
        77) status=0 ;;
        0) status="none: a program read the lines that follow it" ;;
    esac
    line=$(basename "$block" | sed 's/^0*//')
    echo "README.md:$line: exit status $status, $((SECONDS - begun)) s: $(head -n 1 "$block")"
    grep -hE '^(tests:|  SKIP:)' "$block.said" | sed 's/^/    /' || true
    if [ "$status" != 0 ]; then
        failed=1
        tail -n 20 "$block.said" | sed 's/^/    /'
    fi
done
echo "all blocks: $SECONDS s"
if [ "$SECONDS" -ge 1500 ]; then
    echo "that is more than 25 minutes"
    failed=1
fi
exit $failed
