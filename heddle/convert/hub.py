"""Downloads a published model from the Hugging Face Hub, on request."""

from pathlib import Path
from textwrap import shorten

from heddle.errors import HeddleError

# The files that are read; nothing else is downloaded.
FILES = (
    "*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer.json", "vocab.json",
    "merges.txt", "tokenizer_config.json", "chat_template.jinja",
)  # fmt: skip


def fetch(name: str) -> Path:
    """The directory of `owner/name` in the Hub's cache, downloaded if necessary.

    Raises:
        HeddleError: huggingface_hub is not installed, the model does not exist, or the Hub cannot be reached.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise HeddleError("downloading needs huggingface_hub: pip install 'heddle-lm[hub]'") from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    # Its errors have no common base class, and errors of its HTTP library pass through.
    except Exception as error:
        reason = shorten(str(error), 200)
        raise HeddleError(f"{name} cannot be downloaded from the Hub ({type(error).__name__}: {reason})") from None
