"""An HTTP server with OpenAI's API. Needs the extra `heddle-lm[serve]`, and is imported on request only.

In reading order:

- `worker`: one thread per model, which steps the engine and runs other calls between its steps.
- `served`: a run with its worker: prompts from texts, chunks of text as they come.
- `requests`, `answers`, `errors`: the documents that clients send and get.
- `guard`: hosts, keys, sizes; `streaming`: server-sent events, disconnected clients; `metrics`: counts for Prometheus.
- `completions`: completions and chat completions, streamed or not; `app`: the endpoints; `network`: the listening socket.

A request passes `metrics`, `guard`, `app` and `completions`; `served` turns it into ids and gives them to `worker`, whose engine
generates; each event comes back through `served` to `completions`, and as a document or a stream (`streaming`) to the client.
"""

from heddle.serve.app import make_app as make_app
from heddle.serve.served import ServedRun as ServedRun

__all__ = ["ServedRun", "make_app"]
