"""What searching so many passages would take on this machine: bytes, and milliseconds by measured rates."""

from starbucks_retrieval.search.estimate.arguments import PlanArguments, model_sizes
from starbucks_retrieval.search.estimate.machine import Growth, LinearCost, Machine, Rates
from starbucks_retrieval.search.estimate.measure import measure_machine
from starbucks_retrieval.search.estimate.model import EstimateRow, estimate
from starbucks_retrieval.search.estimate.table import Estimates, plan_search

__all__ = [
    "EstimateRow",
    "Estimates",
    "Growth",
    "LinearCost",
    "Machine",
    "PlanArguments",
    "Rates",
    "estimate",
    "measure_machine",
    "model_sizes",
    "plan_search",
]
