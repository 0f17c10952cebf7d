#!/usr/bin/env bash
# Compare the results of all METHODS.
#
# Inputs   WORK/results/METHOD/*.json; training.json of WORK/models/METHOD; PUBLISHED, a reference_results.json, whose
#          figures are shown beside ours at full scale, marked as published; BASELINE, the method against which the others
#          are tested: the paper's Starbucks (default: starbucks), with its test, a two-tailed paired t-test over
#          queries, p < 0.05, without correction
# Outputs  WORK/report: tables (markdown, LaTeX, csv), figures, index.html; the tables on the screen
# Time     6 s tiny on two cores
# Disk     1 MB
set -euo pipefail
# shellcheck source=settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

results=()
trained=()
for method in $METHODS; do
  trained+=("$(label "$method")=$(model_of "$WORK/models/$method" "${SIZES##*,}")")
  for file in "$WORK/results/$method/"*.json; do
    [ -e "$file" ] || die "there are no results of $method yet" "evaluate.sh $method"
    results+=("$file")
  done
done
report_flags=(--title "MS MARCO, $SCALE" --sizes "$SIZES" --note "$(policy_of "${trained[@]}")")
read -ra methods <<<"$METHODS"
baseline=$(baseline_of "${BASELINE:-starbucks}" "${methods[@]}")
if [ -n "$baseline" ]; then report_flags+=(--baseline "$(label "$baseline")" --correction none); fi
if [ -n "${PUBLISHED:-}" ] && [ "$SCALE" = full ]; then
  report_flags+=(--published "$PUBLISHED")
elif [ -n "${PUBLISHED:-}" ]; then
  say "published figures are of the whole collection: a tiny run has none beside its own"
fi
stage report --input "${results[@]}" --output_dir "$WORK/report" "${report_flags[@]}"
cat "$WORK/report/by_size.md" "$WORK/report/averages.md"
