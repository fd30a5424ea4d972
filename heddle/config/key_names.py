"""What the keys of settings are called: other spellings, and the error for an unknown key."""

from collections.abc import Iterable, Mapping

from heddle.errors import did_you_mean

# The lectures' spellings are accepted wherever a table has that key (L0-60, L1-60, D-50); configs are written with heddle's
# names only.
ALIASES = {
    "L": "depth", "n_layer": "depth", "n_layers": "depth",
    "D": "dim", "d_model": "dim", "n_embd": "dim", "h_dim": "dim",
    "N": "heads", "n_head": "heads", "n_heads": "heads",
    "V": "vocab_size", "n_vocab": "vocab_size",
    "T": "context", "S": "context", "n_ctx": "context", "block_size": "context",
    "keep_prob": "dropout",
    "from": "start",  # a word that Python reserves
}  # fmt: skip
# Names that other codebases use. They are refused, and the error names heddle's key.
OTHER_NAMES = {
    "num_layers": "depth", "num_hidden_layers": "depth",
    "hidden_size": "dim", "embed_dim": "dim", "width": "dim",
    "num_heads": "heads", "num_attention_heads": "heads",
    "n_kv_heads": "kv_heads", "n_kv_head": "kv_heads", "num_key_value_heads": "kv_heads", "n_query_groups": "kv_heads",
    "d_head": "head_dim", "d_k": "head_dim", "head_size": "head_dim",
    "d_ff": "hidden", "ffn_dim": "hidden", "intermediate_size": "hidden", "d_mlp": "hidden", "n_inner": "hidden",
    "n_positions": "context", "max_seq_len": "context", "seq_len": "context",
    "max_position_embeddings": "context", "context_length": "context", "max_length": "context",
    "vocabulary_size": "vocab_size",
    "lr": "learning_rate", "max_lr": "learning_rate", "batch_size": "batch", "max_iters": "steps", "max_steps": "steps",
    "iterations": "steps", "grad_clip": "clip", "warmup_iters": "warmup", "warmup_steps": "warmup", "wd": "weight_decay",
    "gradient_accumulation_steps": "accumulate", "grad_accum": "accumulate", "p_drop": "dropout", "act": "activation",
    "activation_function": "activation", "eval_interval": "evaluate_every",
    "gradient_checkpointing": "checkpoint_activations", "activation_checkpointing": "checkpoint_activations",
    "ema_decay": "ema", "early_stopping": "patience", "early_stopping_patience": "patience", "param_groups": "groups",
    "tie_embeddings": "tied", "tie_word_embeddings": "tied", "rope_theta": "base", "norm_eps": "eps", "dtype": "precision",
}  # fmt: skip


# Keys that belong to a stack, not to the model.
DEEPER = {"depth": "decoder.depth", "heads": "decoder.block.mixer.heads"}


def unknown_keys(
    keys: Iterable[str], known: Iterable[str], where: str = "", elsewhere: Mapping[str, str] | None = None
) -> list[str]:
    """The problem with each unknown key, which names the nearest known one. Keys that are near to none share one line.

    Args:
        keys: dotted, as they are written.
        known: the keys of the table in which they are, or dotted keys of several tables.
        where: the end of the line, such as ` in run.toml`.
        elsewhere: keys of other tables, and what to write for them.
    """
    names, others = list(known), elsewhere or {}
    hints = {key: _hint(key, names, others) for key in keys}
    lines = [f"unknown key {key!r}{where}. {hint}" for key, hint in hints.items() if hint]
    strange = [repr(key) for key, hint in hints.items() if not hint]
    if strange:
        noun = "key" if len(strange) == 1 else "keys"
        short = sorted({name for name in names if "." not in name})
        lines.append(f"unknown {noun} {', '.join(strange)}{where}. Known keys: {', '.join(short)}.")
    return lines


def _hint(key: str, names: list[str], elsewhere: Mapping[str, str]) -> str:
    """What to write in place of a key; empty if nothing is near."""
    table, _, leaf = key.rpartition(".")
    dotted = [name for name in names if "." in name]
    if table and dotted and (nearest := did_you_mean(key, dotted)):
        return nearest.strip()
    before = f"{table}." if table and not dotted else ""
    translated = ALIASES.get(leaf) or OTHER_NAMES.get(leaf)
    if (translated or leaf) == "dim" and "." in key:  # L1-51
        return "A model has one width: set 'dim' at the top level."
    if leaf in DEEPER and "decoder" in names:
        return f"Give the full path: {DEEPER[leaf]!r}."
    if translated:
        place = before + translated if translated in names else elsewhere.get(translated, translated)
        return f"heddle calls it {place!r}."
    if leaf in elsewhere:
        return f"It is in another table: {elsewhere[leaf]!r}."
    if table and dotted:  # the table is unknown
        return did_you_mean(key.partition(".")[0], {name.partition(".")[0] for name in names}).strip()
    nearest = did_you_mean(leaf, names, before)
    if not nearest and "decoder" in names:
        nearest = next((f" Did you mean {path!r}?" for name, path in DEEPER.items() if did_you_mean(leaf, [name])), "")
    return nearest.strip()
