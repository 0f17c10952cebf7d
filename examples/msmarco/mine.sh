#!/usr/bin/env bash
# Mine hard negatives for every training query, with BM25 or with a trained model.
#
#   mine.sh bm25      for the first round at tiny scale (full: the hub's rows have negatives)
#   mine.sh METHOD    passages that WORK/models/METHOD ranks high at its full size: the negatives of METHOD-round2
#
# Inputs   training queries and passages: WORK/data (tiny), the hub's GROUPS_NAME and CORPUS_NAME (full); MINE_FLAGS
# Outputs  WORK/negatives/bm25.jsonl or METHOD.jsonl (rows with texts), and the candidates in the same folder
# Time     tiny, on two cores: 1 s by BM25, 13 s by a model (300 queries, 600 passages); full not measured
# Disk     2 MB tiny; full not measured
set -euo pipefail
# shellcheck source=settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

miner=${1:?bm25, or a method}
rows=$WORK/negatives/$miner.jsonl
made_from=()
mine_flags=(--bm25)
if [ "$miner" != bm25 ]; then
  label "$miner" >/dev/null
  model=$(model_of "$WORK/models/$miner" "${SIZES##*,}")
  made_from=("$model/training.json")
  [ -e "${made_from[0]}" ] || die "$model is not trained yet" "train.sh $miner"
  mine_flags=(--model_name_or_path "$model")
fi
if fresh "$rows" ${made_from[@]+"${made_from[@]}"}; then
  kept "$rows"
  exit
fi
if [ "$SCALE" = tiny ]; then
  mine_flags+=(--dataset_path "$WORK/data" --depth 50 --num_negatives 8 --range 3:50)
else
  mine_flags+=(--dataset_name "$GROUPS_NAME" --corpus_name "$CORPUS_NAME" --depth 200 --num_negatives 30)
fi
read -ra more <<<"${MINE_FLAGS:-}"
stage mine "${mine_flags[@]}" --output_path "$rows" --overwrite ${more[@]+"${more[@]}"}
