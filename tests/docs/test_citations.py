"""Papers are cited by the number that is theirs."""

from __future__ import annotations

import re

import pytest
from docs.pages import ROOT

# What the words before a number in brackets must hold.
PAPERS = {
    "1708.06320": "orthogonal regulariser",
    "1803.05449": "SentEval",
    "2101.06983": "[Gg]radient cache|GradCache|Contrastive Learning",
    "2104.08663": "BEIR",
    "2106.09685": "LoRA",
    "2205.12035": "RetroMAE",
    "2205.13147": "Matryoshka|nested embeddings",
    "2208.00231": "Liu and S. Yang",
    "2303.08112": "[Tt]uned lens",
    "2309.12871": "AnglE|angle loss",
    "2402.16829": "GISTEmbed",
    "2402.14776": "2D Matryoshka|ESE",
    "2407.15831": "NV-Retriever",
    "2407.20243": "Matryoshka-Adaptor",
    "2410.13230": "Starbucks",
    "2506.05176": "Qwen3-Embedding",
    "2411.17299": "2D Matryoshka",
}
CITING = [
    path
    for pattern in (
        "README.md",
        "CITATION.cff",
        "docs/**/*.md",
        "bench/*.md",
        "starbucks_retrieval/**/*.py",
        "examples/**/*.sh",
    )
    for path in sorted(ROOT.glob(pattern))
    if "arxiv" in path.read_text(encoding="utf-8").lower()
]


def wrong_citations(text: str) -> list[str]:
    """Numbers that are no paper's of ours, names in front of another paper's number, and links to another paper."""
    text = re.sub(r"\s+(?:# )?", " ", text)
    numbers = re.findall(r"\b(\d{4}\.\d{5})(?:v\d)?\b", text)
    wrong = [f"{number} is unknown" for number in numbers if number not in PAPERS]
    for words, number in re.findall(r"([^()\[\]]{1,80})\(\[?arXiv[ :](\d{4}\.\d{5})(?:v\d)?[\])]", text):
        if number in PAPERS and not re.search(PAPERS[number], words):
            wrong.append(f"{words.strip()!r} is not the paper {number}")
    for shown, target in re.findall(r"\[arXiv (\d{4}\.\d{5}[v\d]*)\]\(https://arxiv.org/abs/([\d.v]+)\)", text):
        if shown != target:
            wrong.append(f"arXiv {shown} leads to {target}")
    return wrong


@pytest.mark.parametrize("path", CITING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_citations_are_right(path):
    assert not wrong_citations(path.read_text(encoding="utf-8"))


def test_the_two_stages_are_credited_to_who_described_them():
    page = (ROOT / "docs" / "explanation" / "methods" / "retromae.md").read_text(encoding="utf-8")
    assert "A. Liu and S. Yang" in " ".join(page.split()) and "2208.00231" in page and "same authors" not in page


def test_wrong_citations_are_found():
    assert wrong_citations("RetroMAE (arXiv 2208.00231)") == ["'RetroMAE' is not the paper 2208.00231"]
    assert wrong_citations("see arXiv 2410.13231") == ["2410.13231 is unknown"]
    assert wrong_citations("[arXiv 2410.13230](https://arxiv.org/abs/2411.17299)") == [
        "arXiv 2410.13230 leads to 2411.17299"
    ]
    assert not wrong_citations("Starbucks (arXiv 2410.13230), eq. 1; ESE (arXiv 2402.14776v3)")
