#!/bin/sh
# Runs the move on a clean worktree: sh redo.sh WORKTREE [COMMIT]. Leaves one commit there.
set -e
cd "$1"
git checkout -q --detach "${2:-next}"
git reset -q --hard && git clean -fdq -e .venv
[ -e .venv ] || ln -s .venv .venv
python3 moving/move.py "$PWD"
git add -A
.venv/bin/ruff check --fix -q --select I . || true
.venv/bin/ruff format -q .
git add -A
git commit -q -m "Move every module to its room under one import name (script)"
git log --oneline -1
