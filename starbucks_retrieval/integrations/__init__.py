"""One size of a model, as other projects' evaluators want it: mteb's and beir's."""

from starbucks_retrieval.integrations.beir import BeirModel
from starbucks_retrieval.integrations.mteb import MtebModel

__all__ = ["BeirModel", "MtebModel"]
