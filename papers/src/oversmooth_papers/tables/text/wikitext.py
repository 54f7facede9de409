"""The same decoder on WikiText-2, a text of 2 million words.

oversmooth reproduce text wikitext --seeds 1
"""

from __future__ import annotations

from dataclasses import dataclass

from oversmooth_papers.tables.text.causal import Causal
from oversmooth_papers.tasks.language.recipe import CAUSAL_WIKITEXT2


@dataclass(frozen=True, kw_only=True)
class Wikitext(Causal):
    """The decoder of text causal on WikiText-2: perplexity, plain and forced to smooth or to sharpen."""

    name = title = "wikitext"
    quick_title = "wikitext, quick"
    default_data = "wikitext-2"
    data_help = "wikitext-2 where OVERSMOOTH_DATA has it, or its folder."
    full = CAUSAL_WIKITEXT2

    def folder(self, _recipe: object) -> str:
        """Quick, it is the same model on the same prose."""
        return self.folder_of(Causal if self.quick else Wikitext)
