#!/usr/bin/env bash
# Encode passages and the queries of every set with a trained method, all sizes in one pass.
#
# Inputs   WORK/models/METHOD; texts: WORK/data (tiny), the hub's CORPUS_NAME and the short names in SETS (full);
#          DEVICES; ENCODE_FLAGS such as "--dtype bf16" or "--backend openvino"
# Outputs  WORK/stores/METHOD/passages and …/queries-SET, one store per size
# Time     24 to 29 s tiny (600 passages, two sets) on two cores; full not measured
# Disk     2 MB tiny; full 31 GB per method, by calculation: 8.8 million passages at the six sizes of a BERT
#
# Baselines that were not trained at these sizes are encoded at them too, as in the paper. Several nodes: ../cluster.
set -euo pipefail
# shellcheck source=settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
one_method "$@"

model=$WORK/models/$1
stores=$WORK/stores/$1
trained=$(model_of "$model" "${SIZES##*,}")
[ -e "$trained/training.json" ] || die "$trained is not trained yet" "train.sh $1"
read -ra encode_flags <<<"${ENCODE_FLAGS:-}"
if [ "$SCALE" = tiny ]; then
  passages_flags=(--dataset_path "$WORK/data")
else
  passages_flags=(--dataset_name "$CORPUS_NAME")
fi
encode_texts "$model" "$stores/passages" "$SIZES" "${passages_flags[@]}" ${encode_flags[@]+"${encode_flags[@]}"}
for set in $(sets); do
  if [ "$SCALE" = tiny ]; then
    queries_flags=(--encode_is_query --dataset_path "$WORK/data" --dataset_split "$set")
  else
    queries_flags=(--encode_is_query --dataset_path "$set")
  fi
  encode_texts "$model" "$stores/queries-$set" "$SIZES" "${queries_flags[@]}" ${encode_flags[@]+"${encode_flags[@]}"}
done
