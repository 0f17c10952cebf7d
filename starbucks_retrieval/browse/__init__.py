"""Runs laid side by side on one page: what was found, what is relevant, what a bigger size gained and lost."""

from starbucks_retrieval.browse.api import Browsed, browse
from starbucks_retrieval.browse.compare import Answer, Hit, Question, Standing, compare

__all__ = ["Answer", "Browsed", "Hit", "Question", "Standing", "browse", "compare"]
