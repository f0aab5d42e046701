# shellcheck shell=bash
# Sourced by the other scripts: finds a Python and makes virtual environments from the lock files in requirements/.
# Everything is made below the repository: .venv for running, .cache for the rest. Expects `set -euo pipefail`.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# The newest Node.js that an agent of the catalogue asks for (claude-code). With an older one on PATH, or none,
# the `node` extra brings one.
NODE_NEEDED=22

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_REQUIRE_VIRTUALENV=0 PIP_USER=0

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$(basename "$0"): $*"
    exit 1
}

# Prints the paths under which a Python may be found, the preferred one first. A version manager's shims may
# refuse to start, so its versions are looked at too, wherever HOME points.
python_candidates() {
    local name entry
    for name in python3 python3.13 python3.12 python3.11 python3.14 python; do
        command -v "$name" || true
    done
    local -a managers=("${PYENV_ROOT:-$HOME/.pyenv}")
    local -a entries
    IFS=: read -r -a entries <<<"$PATH"
    for entry in "${entries[@]}"; do
        [[ $entry == */shims ]] && managers+=("${entry%/shims}")
    done
    for entry in "${managers[@]}"; do
        compgen -G "$entry/versions/3.*/bin/python3" | sort -rV || true
    done
}

# find_python MINOR [MOST]: prints the interpreter of the first Python >= 3.MINOR (and <= 3.MOST) that can make
# environments; status 1 if there is none.
find_python() {
    local candidate found most=${2:-99}
    while read -r candidate; do
        # sys.executable, so that a shim, whose choice may change, is not remembered.
        if found=$("$candidate" -c "
import sys, ensurepip, venv
if not (3, $1) <= sys.version_info[:2] <= (3, $most): sys.exit(1)
print(sys.executable)" 2>/dev/null); then
            printf '%s\n' "$found"
            return 0
        fi
    done < <(python_candidates)
    return 1
}

# Sets `python` to an interpreter that can run Ostler, or ends the script.
need_python() {
    python=$(find_python 11) ||
        fail "needs Python 3.11 or newer with venv (on Debian: apt-get install python3 python3-venv)"
}

# node_is_enough: whether the Node.js on PATH runs every agent of the catalogue.
node_is_enough() {
    local version
    version=$(node --version 2>/dev/null) || return 1
    version=${version#v}
    [[ ${version%%.*} =~ ^[0-9]+$ ]] && ((${version%%.*} >= NODE_NEEDED))
}

# Fills what is below .cache, also for tests (tests/support/packages.py): for each package pip reads the index page with all
# of its releases, most of 20 s of the processor. What users run, .venv, is made by the pip of their Python.
UV=$ROOT/.cache/uv/bin/uv
UV_SETTINGS=$ROOT/.cache/uv/uv.toml

# need_uv: makes it. Where pip's settings name an index, which uv does not read, it is uv's too.
need_uv() {
    local index
    make_environment "$ROOT/.cache/uv" "$python" no requirements/uv.txt
    [[ ! -f $UV_SETTINGS ]] || return 0
    index=$("$ROOT/.cache/uv/bin/python" -m pip config list | sed -n "s/.*\.index-url='\(.*\)'$/\1/p" | tail -n 1)
    {
        printf 'cache-dir = "%s"\n' "$ROOT/.cache/uv-cache"
        # As pip does from Python 3.12 on: an index may have a certificate that this machine alone trusts.
        printf 'system-certs = true\n'
        [[ -z $index ]] || printf '[[index]]\nurl = "%s"\ndefault = true\n' "$index"
    } >"$UV_SETTINGS"
}

# make_environment DIRECTORY PYTHON PROJECT LOCK...: a virtual environment that holds exactly the locked versions and,
# with PROJECT=yes, Ostler itself (editable). Made anew when anything that it was made from has changed; else at once.
# One that another Python made, or that holds more, will do: terminals differ in PATH, and a server may run on it.
make_environment() {
    local directory=$1 python=$2 project=$3
    shift 3
    local -a locks=("$@") sources=("$@")
    [[ $project == yes ]] && sources+=(setup.cfg pyproject.toml)
    local stamp
    stamp=$(cd "$ROOT" && printf '%s\n' "$directory" && cksum "${sources[@]}")
    is_made "$directory" "$stamp" && return 0
    local -a options=() install=("$directory/bin/python" -m pip install -qq)
    if [[ $directory == "$ROOT/.cache/"* && $directory != "$ROOT/.cache/uv" ]]; then
        need_uv
        install=("$UV" pip install -q --config-file "$UV_SETTINGS" --python "$directory/bin/python")
        # Processes of tests start by the hundred; of the other programs one does, and none installs anything.
        if [[ $project == yes ]]; then install+=(--compile-bytecode); else options+=(--without-pip); fi
    fi

    mkdir -p "$ROOT/.cache"
    # One script at a time; the others find the work done.
    exec 9>"$ROOT/.cache/environment.lock"
    if command -v flock >/dev/null; then flock 9; fi
    if ! is_made "$directory" "$stamp"; then
        say "Making ${directory#"$ROOT/"} (once; takes about a minute) ..."
        rm -rf "$directory"
        "$python" -m venv "${options[@]}" "$directory" >&2
        local -a arguments=()
        local lock
        for lock in "${locks[@]}"; do arguments+=(-r "$ROOT/$lock"); done
        # The locks name everything, so nothing is resolved again: pip 23 would look for newer releases of what has extras.
        "${install[@]}" --require-hashes --no-deps "${arguments[@]}" >&2
        if [[ $project == yes ]]; then
            "${install[@]}" --no-deps --no-build-isolation -e "$ROOT" >&2
        fi
        printf '%s\n' "$stamp" >"$directory/made-from"
    fi
    exec 9>&-
}

# The environment for running, .venv.
make_runtime() {
    need_python
    local -a locks=(requirements/runtime.txt)
    node_is_enough || locks+=(requirements/node.txt)
    make_environment "$ROOT/.venv" "$python" yes "${locks[@]}"
}

# is_made DIRECTORY STAMP: whether the environment works and was made from all that the stamp names.
is_made() {
    [[ -x $1/bin/python && -f $1/made-from ]] || return 1
    local made line
    made=$'\n'$(<"$1/made-from")$'\n'
    while IFS= read -r line; do
        [[ $made == *$'\n'"$line"$'\n'* ]] || return 1
    done <<<"$2"
}
