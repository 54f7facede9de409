"""A tokenizer for chemistry models that read SMILES, built from their vocabulary file alone.

One token for each atom, bond, ring closure, bracket and arrow, as in training. The chemistry is not checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oversmooth.safety.errors import InputError
from oversmooth.safety.files import read_text
from oversmooth.safety.libraries import import_library

# Bracket atoms first, two-letter atoms before their first letter, and >> before >.
SPLIT = r"\[[^\]]+\]|Br|Cl|>>|%[0-9]{2}|[BCNOSPFIbcnosp]|[()\.=#\-+\\/:~@?>*$]|[0-9]"
_REMEDY = "give a vocabulary: a text file of one token a line"
_SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}


def smiles_tokenizer(vocabulary: Path) -> Any:
    """A ``PreTrainedTokenizerFast`` for a vocabulary of one token a line; [CLS] goes before each text, [SEP] after."""
    tokens = read_text(Path(vocabulary), _REMEDY).split("\n")
    ids = {token.strip(): index for index, token in enumerate(tokens) if token.strip()}
    missing = [token for token in _SPECIAL.values() if token not in ids]
    if missing:
        raise InputError(f"the vocabulary {vocabulary} has no {', '.join(missing)}; give the model's own vocab.txt")

    tokenizers = import_library("tokenizers", "reading SMILES")
    transformers = import_library("transformers", "reading SMILES")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[UNK]"))
    # Unmatched text becomes [UNK]: nothing is dropped.
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(SPLIT), behavior="isolated")
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    # SMILES has no spaces, so tokens are joined without any.
    inner.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False, **_SPECIAL)
