"""What this machine and this installation have, what they lack, and what to do about it. Loads nothing by itself."""

from starbucks_retrieval.doctor.api import Checkup, examine
from starbucks_retrieval.doctor.problems import Problem

__all__ = ["Checkup", "Problem", "examine"]
