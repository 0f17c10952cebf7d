"""One size of a model, as other projects' evaluators want it: mteb's and beir's."""

from starbucks_retrieval.clients.for_beir import BeirModel
from starbucks_retrieval.clients.for_mteb import MtebModel

__all__ = ["BeirModel", "MtebModel"]
