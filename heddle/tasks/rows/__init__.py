"""How texts and records become rows of tokens.

- `texts`: rows of a text: as one stream, a document per row, or several in a row; `documents`: those that do not cross the ends of
  documents.
- `records`: one record per row, several in a row, or in groups; `framing`: a text or a pair between special tokens.
"""

__all__: list[str] = []
