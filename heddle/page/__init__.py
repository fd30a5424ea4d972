"""A web page that visualizes a model, served from a run or written as one file that works offline.

In reading order:

- `queries`: the queries of the page.
- `subject`: the model of the page, with its last texts and passes.
- `prefixes`, `write`, `maps`, `layers`, `walk`, `plates`, `architecture`, `training`: the documents of the panels.
- `panels`: the table of all panels.
- `app`: the documents over HTTP; `packed`: the page and its documents as one file.

The files in `static/` are plain ES modules without a build step.
"""

from heddle.page.app import make_page as make_page
from heddle.page.packed import write_page as write_page
from heddle.page.subject import PageModel as PageModel

__all__ = ["PageModel", "make_page", "write_page"]
