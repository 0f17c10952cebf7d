import numpy as np
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.codes import code_shortlister
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.search.funnel_search import funnel_search
from starbucks_retrieval.sizes import Size


@pytest.mark.parametrize(("code", "keep"), [("int8", 10), ("int4", 20), ("int2", 80), ("int1", 200), ("binary", 250)])
def test_codes_find_what_exact_search_finds(open_written, code, keep):
    """Long enough a shortlist has the exact ten best, with exact scores."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((300, 8)).astype(np.float32)
    store = open_written([f"d{i}" for i in range(300)], vectors, size=Size(6, 8))
    queries = {Size(6, 8): rng.standard_normal((5, 8)).astype(np.float32)}
    funnel = Funnel.parse(f"6:8/{code}@{keep},6:8@5")
    first = code_shortlister(funnel.steps[0], store)
    [(rows, scores)] = funnel_search(queries, {Size(6, 8): store}, funnel, first=first)
    [(exact, exact_scores)] = funnel_search(queries, {Size(6, 8): store}, Funnel.parse("6:8@5"))
    assert rows.tolist() == exact.tolist()
    assert scores.tobytes() == exact_scores.tobytes()


def test_codes_need_passages_to_learn_from(open_written):
    store = open_written(["a", "b"], np.eye(2, 8, dtype=np.float32), size=Size(6, 8))
    with pytest.raises(UserError, match="6:8/int4@1 learns from at least 16 passages; the store has 2"):
        code_shortlister(Funnel.parse("6:8/int4@1,6:8").steps[0], store)
