#!/usr/bin/env bash
# Encode and search on a Ray cluster.
#
#   examples/cluster/ray.sh my-model my-set out            on this machine, with WORKERS local workers
#   RAY_ADDRESS=auto WORKERS=16 examples/cluster/ray.sh my-model my-set out      on a cluster, from one of its machines
#
# Inputs   a model folder, a BEIR folder, an output folder; all machines need access to all three. Start the cluster first:
#          ray start --head --port 6379          on one machine
#          ray start --address HEAD:6379         on each of the others (install the extra `ray` there too)
# Outputs  OUTPUT/passages, OUTPUT/queries, OUTPUT/L6-D128.trec for the model's full size
# Rerun    after any end: existing shards are kept
# Time     79 s for 700 passages and 400 queries by all-MiniLM-L6-v2 on two busy cores, most of it to start Ray
# Disk     15 MB for these, 14 of them the run; 2 x dims bytes per passage or query, plus ids
#
# NOT RUN BY US on several machines; run on one, with a local Ray.
set -euo pipefail
# shellcheck source=../common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

[ $# -eq 3 ] || die "three arguments are needed" "$(basename "$0") MODEL SET OUTPUT"
model=$1 folder=$2 output=$3
ray_flags=(--ray_workers "${WORKERS:-2}")
if [ -n "${RAY_ADDRESS:-}" ]; then ray_flags+=(--ray_address "$RAY_ADDRESS"); fi
size=${SIZE:-$(default_sizes "$model")}
size=${size##*,}
stage encode --model_name_or_path "$model" --dataset_path "$folder" --encode_output_path "$output/passages" \
  --sizes "$size" --shard_size "${SHARD_SIZE:-16384}" --engine ray "${ray_flags[@]}"
stage encode --model_name_or_path "$model" --dataset_path "$folder" --encode_output_path "$output/queries" \
  --sizes "$size" --encode_is_query
stage search --query_reps "$output/queries" --passage_reps "$output/passages" --size "$size" --engine ray \
  "${ray_flags[@]}" --save_ranking_to "$output/$(size_folder "$size").trec"
