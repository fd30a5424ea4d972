"""Downloads a published model from the Hugging Face Hub, only on request."""

from pathlib import Path
from textwrap import shorten

from heddle.errors import HeddleError

# Only safetensors, JSON, merges and a chat template are ever read, so nothing else is downloaded.
WANTED = (
    "*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer.json", "vocab.json",
    "merges.txt", "tokenizer_config.json", "chat_template.jinja",
)  # fmt: skip


def fetch(name: str) -> Path:
    """The directory of `owner/name` in the Hub's cache, downloaded if it is not there.

    Raises:
        HeddleError: huggingface_hub is not installed, there is no such model, or it cannot be reached.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise HeddleError("downloading needs huggingface_hub: pip install 'heddle-lm[hub]'") from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(WANTED)))
    # Its errors share no base class, and those of the HTTP library that it uses pass through.
    except Exception as error:
        reason = shorten(str(error), 200)
        raise HeddleError(f"{name} cannot be downloaded from the Hub ({type(error).__name__}: {reason})") from None
