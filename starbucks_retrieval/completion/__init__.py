"""Scripts that complete stages, flags and values in bash, zsh and fish, generated from the doors' own parsers."""

from starbucks_retrieval.completion.scripts import SHELLS, script
from starbucks_retrieval.completion.tree import Flag, Stage, all_stages

__all__ = ["SHELLS", "Flag", "Stage", "all_stages", "script"]
