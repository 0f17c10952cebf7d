"""The best size to deploy from measured quality and cost, and sizes for the next training."""

from starbucks_retrieval.choose.api import SizeChoice, choose
from starbucks_retrieval.choose.candidates import (
    SizeCandidate,
    build_candidates,
    find_knee,
    pareto_front,
    propose_sizes,
)

__all__ = ["SizeCandidate", "SizeChoice", "build_candidates", "choose", "find_knee", "pareto_front", "propose_sizes"]
