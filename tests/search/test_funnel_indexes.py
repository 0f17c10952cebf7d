"""Indexes as first steps of funnels: named in the funnel, and found beside a store by `--funnel auto`."""

import re
from functools import partial

import pytest
from searched_stores import LARGE, SMALL, searching, write_searched

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import FunnelArguments, IndexArguments, SearchArguments, funnel_auto, search
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.search.funnel_auto import choose_stored_funnel
from starbucks_retrieval.search.funnel_choice import choose_funnel
from starbucks_retrieval.search.funnel_first_steps import find_indexes
from starbucks_retrieval.search.indexes import build_index
from starbucks_retrieval.search.search_setup import as_funnel
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore, size_folder

PASSAGES = 600


@pytest.fixture
def folder(tmp_path):
    """Passages in p, queries in q, and an index of each kind beside the passages."""
    write_searched(tmp_path, PASSAGES)
    store = EmbeddingStore.open(tmp_path / "p" / size_folder(LARGE))
    build_index(store, "IVF16,Flat", tmp_path / "p" / "ivf", threads=1)
    return tmp_path


def arguments(folder, **more):
    values = {"passage_reps": str(folder / "p"), "query_reps": str(folder / "q"), "depth": 10} | more
    return SearchArguments(**values, save_ranking_to=str(folder / "run.trec"))


def priced(what, run):
    """Run a step, and return made-up seconds: an index costs what it reads, and all else more."""
    run()
    if " of " in what:
        return 0.001
    effort = re.search(r"--index_search \w+=(\d+)", what)
    return float(effort[1]) * (1 if "nprobe" in what else 100) if effort is not None else 1e6 + what.count(",")


@pytest.fixture
def made_up_times(monkeypatch):
    monkeypatch.setattr(funnel_auto, "choose_funnel", partial(choose_funnel, timer=priced, margin=0, tolerance=0))


def test_a_funnel_asks_the_index_of_its_own_last_size(folder):
    """As search with --rescore 4 does, which scores four times the depth again."""
    expected = searching(folder, "index")()
    named = IndexArguments(load_index=str(folder / "index"))
    summary = search(arguments(folder), FunnelArguments(f"{LARGE}/index@40,{LARGE}"), named)
    without_tag = [line.rsplit(None, 1)[0] for line in expected.decode().splitlines()]
    assert [line.rsplit(None, 1)[0] for line in (folder / "run.trec").read_text().splitlines()] == without_tag
    assert (summary.funnel, summary.index) == (f"{LARGE}/index@40,{LARGE}@10", "HNSW8")


def test_an_index_in_a_funnel_is_refused_where_none_is(folder):
    funnel = FunnelArguments(f"{LARGE}/index@40,{LARGE}")
    with pytest.raises(UserError, match="asks an index, and none is given"):
        search(arguments(folder), funnel)
    with pytest.raises(UserError, match="asks an index, which only stored queries do"):
        as_funnel(None, str(funnel.funnel), None)
    with pytest.raises(UserError, match="approximate scores only"):
        Funnel.parse(f"{LARGE}/index@40")


def test_indexes_are_found_in_the_folder_of_the_sizes_and_around_it(folder, caplog):
    assert list(find_indexes(str(folder / "p"))) == [folder / "index", folder / "p" / "ivf"]
    assert find_indexes(str(folder / "none")) == {}
    (folder / "index" / "manifest.json").write_text('{"format": "starbucks_retrieval.index", "version": 1}')
    assert list(find_indexes(str(folder / "p"))) == [folder / "p" / "ivf"]
    assert f"the index in {folder / 'index'} is left out" in caplog.text


def test_auto_takes_the_fewest_lists_that_keep_the_target(folder, made_up_times):
    """Against agreement of every nprobe with exact search."""
    shares = {}
    exact = found(folder, FunnelArguments(str(LARGE)), IndexArguments())
    for probes in (1, 2, 4, 8, 16):
        index = IndexArguments(load_index=str(folder / "p" / "ivf"), index_search=f"nprobe={probes}")
        rows = found(folder, FunnelArguments(f"{LARGE}/index@50,{LARGE}"), index)
        shares[probes] = sum(len(rows[query] & best) for query, best in exact.items()) / 90
    assert shares[1] < 0.9 <= shares[16]
    fewest = min(probes for probes, share in shares.items() if share >= 0.9)
    before = sorted(folder.rglob("*"))
    choice = choose_stored_funnel(arguments(folder), FunnelArguments("auto", target=0.9))
    assert (choice.load_index, choice.index_search) == (str(folder / "p" / "ivf"), f"nprobe={fewest}")
    assert re.fullmatch(rf"{LARGE}/index@\d+,{LARGE}@10", str(choice.funnel))
    assert choice.score >= 0.9 and choice.cost_ratio is None
    assert f" --load_index {folder / 'p' / 'ivf'} --index_search nprobe={fewest}: agreement" in str(choice)
    assert sorted(folder.rglob("*")) == before, "no index is built"


def found(folder, funnel, index):
    search(arguments(folder), funnel, index)
    rows = {}
    for line in (folder / "run.trec").read_text().splitlines():
        rows.setdefault(line.split()[0], set()).add(line.split()[2])
    return rows


def test_the_search_uses_the_chosen_index_and_its_flags_repeat_it(folder, made_up_times):
    summary = search(arguments(folder), FunnelArguments("auto", target=0.9))
    run = (folder / "run.trec").read_bytes()
    assert summary.index == "IVF16,Flat" and "/index@" in summary.funnel
    choice = choose_stored_funnel(arguments(folder), FunnelArguments("auto", target=0.9))
    again = IndexArguments(load_index=choice.load_index, index_search=choice.index_search)
    search(arguments(folder), FunnelArguments(str(choice.funnel)), again)
    assert (folder / "run.trec").read_bytes() == run


@pytest.mark.slow
def test_a_named_index_is_the_only_one_and_may_lose(folder, made_up_times, monkeypatch):
    named = IndexArguments(load_index=str(folder / "index"), index_search="efSearch=40")
    choice = choose_stored_funnel(arguments(folder), FunnelArguments("auto", target=0.5), named)
    assert (choice.load_index, choice.index_search) == (str(folder / "index"), "efSearch=40")

    def slow(what, run):
        return 1.0 + 1e6 * ("index" in what) + priced(what, run) / 1e9

    monkeypatch.setattr(funnel_auto, "choose_funnel", partial(choose_funnel, timer=slow, margin=0, tolerance=0))
    summary = search(arguments(folder), FunnelArguments("auto", target=0.5), named)
    assert summary.index is None and "index" not in summary.funnel


def test_an_index_that_does_not_fit_is_left_out_or_refused_by_name(folder, made_up_times):
    other = folder / "other"
    other.mkdir()
    write_searched(other, PASSAGES - 1)
    (folder / "index").rename(folder / "kept-elsewhere")
    (folder / "kept-elsewhere").rename(other / "hnsw")
    foreign = other / "index"
    with pytest.raises(UserError, match="the store has changed since"):
        choose_stored_funnel(arguments(folder), FunnelArguments("auto"), IndexArguments(load_index=str(foreign)))
    with pytest.raises(UserError, match="takes no parameter efSearch"):
        named = IndexArguments(load_index=str(folder / "p" / "ivf"), index_search="efSearch=40")
        choose_stored_funnel(arguments(folder), FunnelArguments("auto"), named)
    foreign.rename(folder / "foreign")
    choice = choose_stored_funnel(arguments(folder), FunnelArguments("auto", target=0.9))
    assert choice.load_index == str(folder / "p" / "ivf")


@pytest.mark.slow
def test_an_index_at_another_size_makes_lists_for_larger_ones(folder, made_up_times):
    build_index(EmbeddingStore.open(folder / "p" / size_folder(SMALL)), "IVF4,Flat", folder / "small", threads=1)
    named = IndexArguments(load_index=str(folder / "small"))
    choice = choose_stored_funnel(arguments(folder), FunnelArguments("auto", target=0.2), named)
    assert choice.funnel.steps[0].size == SMALL and choice.funnel.last == Size(6, 32)
