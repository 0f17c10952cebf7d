#!/usr/bin/env bash
# Score a method's runs: RR@10 on dev queries, nDCG@10 on the others, and recall at DEPTH. On the graded sets of TREC,
# RR and recall are reported for grades from 1 and, as TREC does, from 2.
#
# Inputs   WORK/runs/METHOD; judgements of WORK/data (tiny) or of the short names in SETS (full)
# Outputs  WORK/results/METHOD/SET.json, with the value of every query
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
  case $set in
  *dev) measures=(RR@10 "R@$DEPTH") ;;
  dl*) measures=(nDCG@10 RR@10 'RR(rel=2)@10' "R@$DEPTH" "R(rel=2)@$DEPTH") ;;
  *) measures=(nDCG@10 "R@$DEPTH") ;;
  esac
  evaluate_flags=(--measures "${measures[@]}" --label "$(label "$1")" --output "$result")
  if [ "$SCALE" = tiny ]; then
    evaluate_flags+=(--qrels "$set-tiny=$WORK/data" --split "$set")
  else
    evaluate_flags+=(--qrels "$set")
  fi
  stage evaluate --run "${runs[@]}" "${evaluate_flags[@]}"
done
