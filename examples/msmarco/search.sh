#!/usr/bin/env bash
# Search every set at every size, exactly.
#
# Inputs   WORK/stores/METHOD; DEPTH
# Outputs  WORK/runs/METHOD/SET/L6-D128.trec and so on
# Time     2 s tiny (two sets, six sizes) on two cores; full not measured
# Disk     3 MB tiny; full not measured
set -euo pipefail
# shellcheck source=settings.sh
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
one_method "$@"

stores=$WORK/stores/$1
for set in $(sets); do
  search_sizes "$stores/passages" "$stores/queries-$set" "$WORK/runs/$1/$set" "$SIZES" "$DEPTH"
done
