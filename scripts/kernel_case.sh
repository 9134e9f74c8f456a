#!/usr/bin/env bash
# Runs kernel_case.py, with the Python of the first argument: what scripts/old_kernel.sh starts is a script of bash.
export PYTHONPATH=$(dirname "$0")/..
exec "$1" "$(dirname "$0")/kernel_case.py" "${@:2}"
