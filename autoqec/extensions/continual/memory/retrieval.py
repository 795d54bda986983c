"""RetrievalService: deterministic TF-IDF cosine similarity over texts, without a model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable

_WORD = re.compile(r"[^\W_]+")


class RetrievalService:
    """Index over texts. Callers map the returned indices to their own objects."""

    def __init__(self) -> None:
        self._documents: list[Counter[str]] = []
        self._document_frequency: Counter[str] = Counter()  # number of documents that contain a word

    def build_index(self, texts: Iterable[str]) -> None:
        """Replace the index."""
        self._documents, self._document_frequency = [], Counter()
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        """Append a text to the index."""
        words = Counter(word.lower() for word in _WORD.findall(text))
        self._documents.append(words)
        self._document_frequency.update(words.keys())

    def query_top_k(self, query: str, k: int) -> list[int]:
        """Return the indices of the k most similar texts, best first, ties by index; fewer if the index is smaller."""
        wanted = self._weights(Counter(word.lower() for word in _WORD.findall(query)))
        scores = [(self._cosine(wanted, document), index) for index, document in enumerate(self._documents)]
        scores.sort(key=lambda score: (-score[0], score[1]))
        return [index for _, index in scores[: max(k, 0)]]

    def _weights(self, words: Counter[str]) -> dict[str, float]:
        # Smoothed, so that words in every document still count and equal texts are the most similar ones.
        total = len(self._documents)
        weights = {
            word: (1 + math.log(count)) * (1 + math.log((1 + total) / (1 + self._document_frequency[word])))
            for word, count in sorted(words.items())
        }
        norm = math.sqrt(sum(weight * weight for weight in weights.values())) or 1.0
        return {word: weight / norm for word, weight in weights.items()}

    def _cosine(self, wanted: dict[str, float], document: Counter[str]) -> float:
        if not wanted.keys() & document.keys():
            return 0.0
        found = self._weights(document)
        # Rounded, so that ties do not depend on the last bit of a sum.
        return round(sum(weight * found.get(word, 0.0) for word, weight in wanted.items()), 12)
