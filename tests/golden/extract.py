"""Copy the sections that tests/golden checks from a full golden file: python tests/golden/extract.py golden.json"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SECTIONS = (
    *("seed", "format", "encoder", "srl", "srl_sts_ielab", "mnrl", "metrics"),
    *("mrl", "two_dmse_v1", "two_dmse_st", "ese_align", "two_dmse_v2", "log_weights_12", "two_dmse_v2_retrieval"),
    *("srl_sampled_ielab", "distil_group", "sts_losses"),
    *("whole_word_masks", "enhanced_decoding", "head_transform", "smae"),
)

if __name__ == "__main__":
    full = json.loads(Path(sys.argv[1]).read_text())
    kept = {name: full[name] for name in SECTIONS}
    Path(__file__).with_name("golden.json").write_text(json.dumps(kept, separators=(",", ":")) + "\n")
