#!/usr/bin/env bash
# Score a method's runs: RR@10 on dev queries, nDCG@10 on the others, and recall at the depth.
#
# Inputs   WORK/runs/METHOD; judgements of WORK/data (tiny) or of the short names in SETS (full)
# Outputs  WORK/results/METHOD/SET.json, with the figure of every query
# Time     2 s tiny on two cores; full not measured
# Disk     under 1 MB
#
# Sets of a tiny run are called dl19-tiny and so on: their scores are not those of dl19.
set -euo pipefail
# shellcheck source=settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
one_method "$@"

for set in $(sets); do
  result=$WORK/results/$1/$set.json
  runs=("$WORK/runs/$1/$set/"*.trec)
  [ -e "${runs[0]}" ] || die "there are no runs in $(dirname "${runs[0]}") yet" "search.sh $1"
  if fresh "$result" "${runs[@]}"; then
    kept "$result"
    continue
  fi
  case $set in *dev) measure=RR@10 ;; *) measure=nDCG@10 ;; esac
  evaluate_flags=(--measures "$measure" "R@$DEPTH" --label "$(label "$1")" --output "$result")
  if [ "$SCALE" = tiny ]; then
    evaluate_flags+=(--qrels "$set-tiny=$WORK/data" --split "$set")
  else
    evaluate_flags+=(--qrels "$set")
  fi
  stage evaluate --run "${runs[@]}" "${evaluate_flags[@]}"
done
