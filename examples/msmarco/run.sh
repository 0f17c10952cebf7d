#!/usr/bin/env bash
# The retrieval study from text to tables: data, pre-training, mining, training, encoding, search, evaluation, report.
#
#   examples/msmarco/run.sh                                        tiny: offline, on two cores
#   SCALE=full DEVICES=8 PUBLISHED=reference_results.json examples/msmarco/run.sh
#
# Inputs   settings.sh lists the settings (SCALE, WORK, METHODS, DATA, BACKBONE, SIZES …), ../common.sh those for starting
#          processes. PUBLISHED names a reference_results.json, whose figures are shown beside ours.
# Outputs  in WORK: data/ negatives/ pretrained/ models/ stores/ runs/ results/ report/index.html; tables on the screen
# Rerun    after any end, also a kill: finished stages are kept, the others continue. To repeat a part, remove its folder
#          and those made from it.
# Time     222 s tiny, 103 s in the smallest form (`make pipelines`: one method, 200 passages), on two cores; full not measured
# Disk     930 MB tiny: 660 of them the checkpoint of pre-training, 260 the models; full not measured
set -euo pipefail
# shellcheck source=settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
HERE=$EXAMPLES/msmarco

began=$SECONDS
for method in $METHODS; do label "$method" >/dev/null; done
[ "$SCALE" = full ] || "$HERE/data.sh"
case " $METHODS" in *' starbucks'*) "$HERE/pretrain.sh" ;; esac
[ "$SCALE" = full ] || "$HERE/mine.sh" bm25
for method in $METHODS; do
  say "== $(label "$method")"
  case $method in
  *-round2)
    "$HERE/train.sh" "${method%-round2}"
    "$HERE/mine.sh" "${method%-round2}"
    ;;
  esac
  for part in train encode search evaluate; do "$HERE/$part.sh" "$method"; done
done
"$HERE/report.sh"
say "done in $((SECONDS - began)) s"
