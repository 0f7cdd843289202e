"""Holds a tokenizer against the model it is used with: whether their vocabularies fit. It changes neither."""

from pelton.checkpoint.mapped import quoted
from pelton.checkpoint.special_tokens import SpecialTokens
from pelton.core.errors import CheckpointError
from pelton.tokenize.tokenizer import Tokenizer


def check_vocabulary(tokenizer: Tokenizer, tokens: SpecialTokens, vocab: int) -> tuple[str, ...]:
    """What does not fit the model's `vocab` rows of embedding but does no harm, as sentences for the user.

    Raises CheckpointError if the token that is put before every prompt is outside, as then no prompt can run.
    """
    if tokenizer.add_bos and tokenizer.bos_id is not None and tokenizer.bos_id >= vocab:
        raise CheckpointError(
            f"Every prompt starts with token {quoted(tokenizer.bos_id)} (bos), but the model has {vocab} tokens.",
            "Use the tokenizer that belongs to the model, or correct bos_token in its files.",
        )
    notes = []
    if tokenizer.vocab_size > vocab:
        notes.append(
            f"The tokenizer has {tokenizer.vocab_size} tokens, the model {vocab}: prompts that need others are refused."
        )
    for token in tokens.eos_ids:
        if token >= vocab:
            notes.append(f"Token {quoted(token)} cannot end an answer, as it is outside of the model's {vocab} tokens.")
    return tuple(notes)
