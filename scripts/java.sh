#!/usr/bin/env bash
# Spark needs a Java runtime, 17 or newer: use the one that is there, otherwise install Debian's
# when we may, otherwise say what is missing in one message.
set -euo pipefail
least=17

major() { "$1" -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1; }

for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)"; do
    [ -n "$candidate" ] && [ -x "$candidate" ] || continue
    found=$(major "$candidate")
    if [ -n "$found" ] && [ "$found" -ge "$least" ]; then exit 0; fi
done

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "Installing a Java runtime (openjdk-17-jre-headless) for Spark"
    export DEBIAN_FRONTEND=noninteractive
    if { apt-get install -y -q openjdk-17-jre-headless || { apt-get update -q && apt-get install -y -q openjdk-17-jre-headless; }; } >/dev/null 2>&1; then
        exit 0
    fi
fi
cat >&2 <<MSG
Penstock's Spark pipelines need a Java runtime, version $least or newer, and none was found.
Install one (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install
openjdk@17) or point JAVA_HOME at one, then run the command again.
MSG
exit 1
