"""From measured quality and cost of sizes to the one to deploy, and to a ladder for the next training."""

from starbucks_retrieval.choose.api import Choice, choose
from starbucks_retrieval.choose.candidates import Candidate, candidates, front, knee
from starbucks_retrieval.choose.size_list import propose_ladder

__all__ = ["Candidate", "Choice", "candidates", "choose", "front", "knee", "propose_ladder"]
