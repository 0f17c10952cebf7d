#!/usr/bin/env bash
# Make the collection of a tiny run: a small part of a BEIR folder. A full run reads the hub and does not need this.
#
# Inputs   DATA (a BEIR folder; default: see settings.sh), PASSAGES, QUERIES, TRAIN_QUERIES
# Outputs  WORK/data: corpus.jsonl, queries.jsonl, qrels/{train,dev,dl19 …}.tsv
# Time     2 s tiny
# Disk     1 MB tiny
set -euo pipefail
# shellcheck source=settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

[ "$SCALE" = tiny ] || die "a full run reads its data from the hub" "leave out $(basename "$0")"
if [ -d "$WORK/data" ]; then
  kept "$WORK/data"
else
  cut_flags=(--passages "$PASSAGES" --queries "$QUERIES" --train "$TRAIN_QUERIES")
  [ -z "$DATA" ] || cut_flags+=(--source "$DATA")
  "$PYTHON" "$EXAMPLES/cut_set.py" "$WORK/data" "${cut_flags[@]}"
fi
