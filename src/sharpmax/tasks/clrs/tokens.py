"""A tokenizer of single characters, so that digits stay apart."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

PAD, BEGIN, END, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""The new line, and all that ASCII can print: CLRS-Text, and English beside it."""


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for every character, and one that texts begin with."""
    names = [PAD, BEGIN, END, UNKNOWN, *CHARACTERS]
    tokenizer = Tokenizer(
        models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=UNKNOWN)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, names.index(BEGIN))]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
