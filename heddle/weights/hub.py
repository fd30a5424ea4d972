"""Fetching a published model from the Hugging Face Hub, where that was asked for by name."""

from pathlib import Path
from textwrap import shorten

from heddle.errors import HeddleError

# Weights in safetensors and plain JSON: nothing else is ever read, so nothing else is fetched.
WANTED = (
    "*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer.json", "vocab.json",
    "merges.txt",
)  # fmt: skip


def fetch(name: str) -> Path:
    """The directory of `owner/name`, downloaded into the Hub's own cache, or found there.

    Raises:
        HeddleError: huggingface_hub is not installed, there is no such model, or it cannot be reached.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise HeddleError("downloading needs huggingface_hub: pip install 'heddle-lm[hub]'") from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(WANTED)))
    # Its errors share no base class, and below them are those of whichever HTTP library it uses this year.
    except Exception as error:
        reason = shorten(str(error), 200)
        raise HeddleError(f"{name} cannot be fetched from the Hub ({type(error).__name__}: {reason})") from None
