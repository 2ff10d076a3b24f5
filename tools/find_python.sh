#!/bin/sh
# Prints a Python that can carry ngram_ref, or says in one line what is missing.
# Usage: [PYTHON=…] find_python.sh ENVIRONMENT   (the environment's own Python wins where it exists)
new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
can_make_environments='import ensurepip, venv'

fail() { echo "ngram_ref: $*" >&2; exit 1; }

if [ -x "$1/bin/python" ]; then
  "$1/bin/python" -c "$new_enough" || fail "the environment $1 has $("$1/bin/python" -V 2>&1), but Python 3.11 or newer is needed: activate another one, or remove it."
  echo "$1/bin/python"
  exit 0
fi

without_venv=
for candidate in ${PYTHON:-python3.11 python3.12 python3 python}; do
  # Run it rather than ask for its path: a pyenv shim is on the path also where its version is not installed.
  "$candidate" -c "$new_enough" 2>/dev/null || continue
  if "$candidate" -c "$can_make_environments" 2>/dev/null; then
    echo "$candidate"
    exit 0
  fi
  without_venv=$candidate
done

[ -z "$without_venv" ] || fail "$without_venv lacks the venv module: on Debian or Ubuntu, 'sudo apt-get install python3-venv' brings it; or pass PYTHON=/path/to/another/python."
fail "Python 3.11 or newer is needed, and ${PYTHON:-python3} is none: install one, or pass PYTHON=/path/to/python3.12."
