"""Serving: runs behind an HTTP server that speaks OpenAI's API. Installed by `heddle-lm[serve]`; imported on request only.

In reading order:

- `worker`: one thread for one model, which steps the engine and answers what is asked between its steps.
- `served`: a run with its worker: texts to ids, parts of texts as they come.
- `requests`, `answers`, `errors`: what clients send and get.
- `guard`: hosts, keys, sizes; `streaming`: server-sent events, clients that leave; `metrics`: counts for Prometheus.
- `app`: the endpoints.
"""

from heddle.serve.app import make_app as make_app
from heddle.serve.served import ServedRun as ServedRun

__all__ = ["ServedRun", "make_app"]
