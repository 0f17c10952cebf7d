"""From measured quality and cost of sizes to the one to deploy, and to a ladder for the next training."""

from starbucks_retrieval.choose.api import SizeChoice, choose
from starbucks_retrieval.choose.candidates import Candidate, candidates, front, knee
from starbucks_retrieval.choose.size_list import propose_sizes

__all__ = ["Candidate", "SizeChoice", "candidates", "choose", "front", "knee", "propose_sizes"]
