"""The same decoder on WikiText-2, a text of 2 million words.

oversmooth reproduce text wikitext --seeds 1
"""

from __future__ import annotations

from dataclasses import dataclass

from oversmooth_papers.tables.base import register
from oversmooth_papers.tables.text.causal import Causal
from oversmooth_papers.tables.text.variants import TextTable
from oversmooth_papers.tasks.language.recipe import CAUSAL_WIKITEXT2, QUICK


@register
@dataclass(frozen=True, kw_only=True)
class Wikitext(TextTable):
    """The decoder of text causal on WikiText-2: perplexity, plain and forced to smooth or to sharpen."""

    name = "wikitext"
    default_data = "wikitext-2"
    data_help = "wikitext-2 where OVERSMOOTH_DATA has it, or its folder."
    base = CAUSAL_WIKITEXT2
    quick_base = QUICK
    note = Causal.note

    def folder(self, _recipe: object) -> str:
        """Quick, it is the same model on the same prose."""
        return self.folder_of(Causal if self.quick else Wikitext)
