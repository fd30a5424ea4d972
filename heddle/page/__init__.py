"""The page: what a model does, in a browser, served from a run or written as one file that works offline.

In reading order:

- `asked`: what the page can ask for, as data.
- `subject`: a run as the page sees it: its model, and the texts that it has read.
- `prefixes`, `write`, `maps`, `layers`, `walk`, `architecture`, `training`: what each panel shows, as documents.
- `panels`: the table of all of them.
- `app`: the documents over HTTP; `packed`: the page and the documents as one file.

The files in `static/` are plain ES modules, which need no build step.
"""

from heddle.page.app import make_page as make_page
from heddle.page.packed import write_page as write_page
from heddle.page.subject import PageModel as PageModel

__all__ = ["PageModel", "make_page", "write_page"]
