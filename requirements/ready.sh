# Sourced by ./ottla and ./test with $root set: `ready NAME` returns at once if .venv answers to requirements/NAME.lock, this place
# and pyproject.toml (the stamp is a copy of all three, compared byte by byte), and otherwise sets it up.

ready() {
    { printf '%s\n' "$root"; cat "$root/requirements/$1.lock" "$root/pyproject.toml"; } 2>/dev/null |
        cmp -s - "$root/.venv/$1.stamp" && return
    for python in ${OTTLA_PYTHON:-python3 python python3.14 python3.13 python3.12 python3.11}; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            "$python" "$root/requirements/setup_venv.py" "$1" || exit 1
            return
        fi
    done
    echo "ottla: Python 3.11 or newer is needed, and none was found on PATH (set OTTLA_PYTHON to name one)." >&2
    exit 1
}
